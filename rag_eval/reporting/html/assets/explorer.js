/*
 * The per-question explorer of the report and of `rag-eval view`: a table of questions to sort, filter and page through, and what lies behind each.
 *
 * Belongs here: everything the explorer does in a browser. Its data are the explorer's bundle (rag_eval.evaluation.explorer_steps): embedded in the
 * page as base64 of gzip, or fetched from the viewer. Every text of it is data: it becomes text nodes and attribute values, never markup, and a link
 * only where the bundle gives an address with http or https. Sorting and filtering work on an index of the questions; only one page is in the document.
 */
(() => {
  'use strict';

  const SIZES = [10, 20, 50, 200];
  const DEFAULT_SIZE = 10;
  const MAX_NOTE = 500;
  const CUTOFF = 10; // of R@10, and of the hits that are counted; the target of the miss rate has a K of its own
  const TAGS_IN_ROW = 4;
  const PREFIX = '#explorer';
  const NO_ANSWER = '-';
  const ALL = '*';
  const PER_STRATEGY = ['value', 'change', 'first', 'hits', 'runs', 'miss', 'status', 'state', 'lost'];
  const FLAGS = ['missed', 'changed'];

  const SAYINGS = [
    ['something_missing', 'Something is missing'],
    ['evidence_not_relevant', 'The evidence is not relevant'],
    ['nothing_missing', 'Nothing is missing'],
  ];

  /** An error whose message is a sentence for the reader. */
  class Told extends Error {}

  const sentence = (error) => (error instanceof Told ? error.message : 'The data of the explorer are damaged, so they cannot be shown (' + error.message + ').');

  // ---------------------------------------------------------------- making elements

  /** An element with properties as attributes (null and false are left out) and children: nodes, or texts that stay texts. */
  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes ?? {})) {
      if (typeof value === 'function') element.addEventListener(key, value);
      else if (value === true) element.setAttribute(key, '');
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, String(value));
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
  };

  /** A text from the data, kept apart from the direction of what stands around it. */
  const foreign = (text, kind) => make('bdi', { class: kind }, String(text ?? ''));

  /** A dash for what is not there, with the reason for those who point at it or hear it. */
  const absent = (reason) => make('span', { class: 'ex-absent', title: reason }, make('span', { 'aria-hidden': 'true' }, '–'), make('span', { class: 'ex-hidden' }, reason));

  const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
  const fixed = (value, digits = 3) => value.toFixed(digits).replace('-', '−');
  const number = (value, reason, digits = 3) => (isNumber(value) ? fixed(value, digits) : absent(reason));
  const spoken = (name) => String(name).replaceAll('_', ' ');
  const plural = (n, one, many) => n.toLocaleString('en') + ' ' + (n === 1 ? one : many);

  /** Whether a browser may follow an address: http or https, as the bundle says and once more as the browser reads it. */
  const followable = (address) => {
    if (typeof address !== 'string' || !/^https?:\/\/[^\s]/i.test(address)) return false;
    try {
      return ['http:', 'https:'].includes(new URL(address).protocol);
    } catch {
      return false;
    }
  };

  /** A link that tells the other side nothing, or the text alone where the address is none that a browser may follow. */
  const linked = (address, text, kind) => {
    const label = foreign(text, kind);
    if (!followable(address)) return label;
    return make('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, label);
  };

  /** A text in pieces, plain and gold in turn. */
  const marked = (pieces) => make('bdi', {}, pieces.map((piece, at) => (at % 2 === 1 ? make('mark', {}, piece) : piece)));

  /** Where in a document: the section without the document's name, which stands before it. */
  const sectionOf = (item) => {
    const section = String(item.section ?? '');
    if (section === '' || section === item.doc) return null;
    return [' ', foreign(section.startsWith(item.doc + '#') ? section.slice(item.doc.length) : section, 'ex-section')];
  };

  const choices = (select, options) => select.replaceChildren(...options.map(([value, label]) => make('option', { value }, label)));

  // ---------------------------------------------------------------- the data

  /** Bytes of a base64 text. A loop, because these are megabytes. */
  const bytesOf = (text) => {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
    return bytes;
  };

  /** Read one part of the bundle: from the page where it is embedded, else from the server. */
  const reader = (root) => {
    const inflate = async (block) => {
      if (typeof DecompressionStream !== 'function') throw new Told('This browser is too old to unpack the explorer’s data (it lacks DecompressionStream).');
      return new Response(new Blob([bytesOf(block.textContent)]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
    };
    const fetched = async (name) => {
      const answer = await fetch(root.dataset.base + 'explorer/' + name + '.json', { credentials: 'same-origin' }).catch(() => {
        throw new Told('The server does not answer. Is rag-eval view still running?');
      });
      if (!answer.ok) throw new Told('The server has no part “' + name + '” of this run (status ' + answer.status + ').');
      return answer.text();
    };
    return async (name) => {
      const block = document.getElementById('bundle-' + name);
      if (root.dataset.source !== 'fetch' && block === null) throw new Told('This file lacks the part “' + name + '” of the explorer’s data.');
      try {
        return JSON.parse(await (root.dataset.source === 'fetch' ? fetched(name) : inflate(block)));
      } catch (error) {
        throw error instanceof Told ? error : new Told('The part “' + name + '” of the explorer’s data is damaged.');
      }
    };
  };

  /** The questions, each part read once; a part that failed is read again when it is asked for again. */
  const questionsOf = (read, size) => {
    const kept = new Map();
    return async (at, id) => {
      const name = 'questions-' + String(Math.floor(at / size)).padStart(4, '0');
      if (!kept.has(name)) {
        kept.set(name, read(name));
        kept.get(name).catch(() => kept.delete(name));
      }
      const question = (await kept.get(name))[at % size];
      if (question === undefined || question.id !== id) throw new Told('The explorer’s data are damaged: another question stands where this one should.');
      return question;
    };
  };

  /** The summary, its shape tried: every column as long as there are questions. */
  const checked = (summary) => {
    const columns = Object.entries(summary?.questions ?? {});
    const whole = (column) => Array.isArray(column) && column.length === summary.n_questions;
    const bad = columns.filter(([key, column]) => !whole(column) && !(PER_STRATEGY.includes(key) && column.length === summary.strategies.length && column.every(whole)));
    if (columns.length === 0 || bad.length > 0) throw new Told('The explorer’s data are damaged, or of another version of rag-eval: incomplete columns (' + bad.map(([key]) => key).join(', ') + ').');
    return summary;
  };

  // ---------------------------------------------------------------- sorting and filtering

  /** The columns: what each shows, and the number or text that it is sorted by; null comes last. */
  const columnsOf = (summary) => {
    const { questions } = summary;
    const rank = (at, s) => questions.first[s][at] ?? (isNumber(questions.value[s][at]) ? Infinity : null);
    return [
      { key: 'question', label: 'Question', about: 'Id and text in the original wording.', by: (at) => questions.id[at] },
      { key: 'tags', label: 'Tags', about: 'Tags of the gold set.', by: (at) => questions.tags[at].join('\n') || null },
      { key: 'value', label: summary.measure, about: summary.measure + ' at the ' + summary.level + ' level, mean over wordings and seeds.', by: (at, s) => questions.value[s][at], numeric: true },
      { key: 'change', label: 'Change', about: summary.measure + ' minus the previous run’s.', by: (at, s) => questions.change[s][at], numeric: true },
      { key: 'first', label: 'First gold', about: 'Rank of the first gold in the original wording; “none” where it is not within the depth of the run.', by: rank, down: true, numeric: true },
      { key: 'hits', label: 'Hits', about: 'How many of the retrievals (wordings and seeds) have gold in the top ' + CUTOFF + '.', by: (at, s) => (questions.runs[s][at] > 0 ? questions.hits[s][at] / questions.runs[s][at] : null), numeric: true },
      { key: 'miss', label: 'Miss rate', about: 'Stated ' + summary.target + '@' + summary.k + ' of the original wording, with its status.', by: (at, s) => questions.miss[s][at], down: true, numeric: true },
      { key: 'outcome', label: 'Answer', about: 'How answering ended.', by: (at) => questions.outcome[at] },
      { key: 'citations', label: 'Citations', about: 'Correct citations of those the answer has.', by: (at) => (questions.cited[at] > 0 ? (questions.correct[at] ?? 0) / questions.cited[at] : null), numeric: true },
    ];
  };

  const collator = new Intl.Collator('en', { numeric: true });
  const compare = (a, b) => (a === b ? 0 : typeof a === 'string' ? collator.compare(a, b) : a - b);

  /** Question numbers in the order of a column; ties by the lowest measure, then the highest miss rate. */
  const sorted = (summary, s, column, descending) => {
    const { value, miss } = summary.questions;
    const keys = summary.questions.id.map((_, at) => column.by(at, s));
    const known = (x) => x !== null && x !== undefined && !Number.isNaN(x);
    const order = (a, b) => {
      if (known(keys[a]) !== known(keys[b])) return known(keys[a]) ? -1 : 1;
      const byKey = known(keys[a]) ? compare(keys[a], keys[b]) * (descending ? -1 : 1) : 0;
      return byKey || compare(value[s][a] ?? Infinity, value[s][b] ?? Infinity) || compare(miss[s][b] ?? -1, miss[s][a] ?? -1) || a - b;
    };
    return keys.map((_, at) => at).sort(order);
  };

  const found = (rank) => isNumber(rank) && rank <= CUTOFF;

  /** Whether a question is shown, as a function of its number. */
  const filter = (summary, searched, view) => {
    const { questions } = summary;
    const s = view.strategy;
    const asked = view.q.trim().toLowerCase();
    const tests = [];
    if (asked !== '') tests.push((at) => searched[at].includes(asked));
    if (view.tag !== '') tests.push((at) => questions.tags[at].includes(view.tag));
    if (view.status !== '') tests.push((at) => questions.status[s][at] === view.status);
    if (view.outcome === NO_ANSWER) tests.push((at) => questions.outcome[at] === null);
    else if (view.outcome !== '') tests.push((at) => questions.outcome[at] === view.outcome);
    if (view.missed) tests.push((at) => isNumber(questions.value[s][at]) && !found(questions.first[s][at]));
    if (view.changed) tests.push((at) => isNumber(questions.change[s][at]) && questions.change[s][at] !== 0);
    return (at) => tests.every((test) => test(at));
  };

  // ---------------------------------------------------------------- what is behind a question

  const badge = (kind, text, about) => make('span', { class: 'ex-badge ' + kind, title: about }, text);

  const firstGold = (run) => (isNumber(run.first) ? '#' + run.first : isNumber(run.value) ? badge('ex-none', 'none', 'no gold within the depth of the run') : absent('not judged'));

  /** The stated miss rate: value, interval, status, and what gave it. */
  const missRate = ([value, low, high, name, calibrator]) => {
    const range = isNumber(low) && isNumber(high) ? ' [' + fixed(low) + ', ' + fixed(high) + ']' : '';
    return make('span', { class: 'ex-miss' }, number(value, 'no miss rate is stated'), range, ' ', statusOf(name), calibrator ? [' by ', foreign(calibrator.slice(0, 16), 'ex-code-text')] : null);
  };

  const statusOf = (name) => make('span', { class: 'ex-status', 'data-status': name }, name);
  const trust = (unit) => make('span', { class: 'ex-trust', 'data-verdict': unit.verdict }, unit.verdict + (isNumber(unit.trust) ? ' · trust ' + fixed(unit.trust, 2) : ''));

  const snippet = (unit) => (unit.text === null ? make('p', { class: 'ex-left-out' }, 'The text is not in this file: rag-eval view shows it.') : make('p', { class: 'ex-snippet' }, marked(unit.text)));

  /** One ranked passage. */
  const ranked = (summary, run, units) => (place, at) => {
    const unit = units[place];
    const hit = run.hits.includes(at);
    return make(
      'li',
      { class: hit ? 'ex-unit ex-hit' : 'ex-unit', value: at + 1 },
      make(
        'div',
        { class: 'ex-unit-head' },
        make('span', { class: 'ex-rank' }, make('span', { class: 'ex-hidden' }, 'Rank '), String(at + 1)),
        make('span', { class: 'ex-where' }, linked(unit.link, unit.doc, 'ex-doc'), sectionOf(unit), unit.title && unit.title !== unit.doc ? [' ', foreign(unit.title, 'ex-title')] : null),
        make('span', { class: 'ex-score' }, make('span', { class: 'ex-hidden' }, 'score '), number(run.scores[at] ?? null, 'no score', 4)),
      ),
      snippet(unit),
      make('p', { class: 'ex-badges' }, hit ? badge('ex-badge-hit', 'gold ' + summary.level, 'counted as relevant at the ' + summary.level + ' level') : null, trust(unit), unit.reasons.length > 0 ? make('span', { class: 'ex-reasons' }, unit.reasons.map((reason) => foreign(reason, 'ex-code-text'))) : null),
    );
  };

  const quoted = (item) => [make('div', {}, linked(item.link, item.doc, 'ex-doc'), sectionOf(item)), item.quote ? make('blockquote', { class: 'ex-quote' }, foreign(item.quote)) : null];
  const quiet = (text) => make('p', { class: 'ex-quiet' }, text);

  const part = (title, kind, ...children) => make('section', { class: 'ex-part ' + kind }, make('h4', {}, title), children);
  const goldPart = (question) => part('Gold', '', question.gold.length === 0 ? quiet('The gold set names no evidence for this question.') : make('ul', { class: 'ex-gold' }, question.gold.map((gold) => make('li', {}, quoted(gold)))));

  const citation = (cited) => {
    const [kind, words] = cited.correct === true ? ['ex-right', 'correct'] : cited.correct === false ? ['ex-wrong', 'not correct'] : ['ex-open-verdict', 'not judged'];
    const code = String(cited.code ?? '');
    return make('li', {}, quoted(cited), make('p', { class: 'ex-badges' }, make('span', { class: 'ex-badge ex-correct ' + kind }, words), make('span', { class: 'ex-code', 'data-code': code }, foreign(code, 'ex-code-text'))));
  };

  const answerPart = ({ answer }) => {
    if (answer === null || answer === undefined) return part('Answer', 'ex-answer', quiet('This run has no answer to this question.'));
    const grounded = isNumber(answer.groundedness) ? [' · groundedness ', fixed(answer.groundedness)] : null;
    return part(
      'Answer',
      'ex-answer',
      make('p', { class: 'ex-facts' }, make('span', { class: 'ex-outcome', 'data-outcome': answer.outcome }, foreign(spoken(answer.outcome))), grounded, ' · from ', foreign(answer.strategy)),
      answer.text ? make('p', { class: 'ex-answer-text' }, foreign(answer.text)) : null,
      answer.citations.length === 0 ? quiet('It cites nothing.') : make('ol', { class: 'ex-citations' }, answer.citations.map(citation)),
    );
  };

  // ---------------------------------------------------------------- what a reader says of a retrieval

  /** The form that records an outcome. `said` keeps what was recorded while the page is open. */
  const feedbackForm = (claim, said) => {
    const key = JSON.stringify(claim);
    const name = 'ex-say-' + claim.strategy_number;
    const told = make('p', { class: 'ex-told', role: 'status', 'aria-live': 'polite' }, said.get(key) ?? '');
    const send = make('button', { type: 'submit', class: 'ex-send' }, 'Record');
    const note = make('textarea', { class: 'ex-note', id: name + '-note', rows: 2, maxlength: MAX_NOTE });
    const choice = ([value, label]) => make('label', {}, make('input', { type: 'radio', name, value, required: true }), ' ', label);
    const fields = make('fieldset', {}, make('legend', {}, 'What do you say of this retrieval?'), make('div', { class: 'ex-sayings' }, SAYINGS.map(choice)), make('label', { for: note.id, class: 'ex-note-label' }, 'Note (optional)'), note, make('div', { class: 'ex-send-row' }, send));
    const form = make('form', { class: 'ex-feedback' }, fields, told);
    const tell = (text, kind) => {
      told.textContent = text;
      told.dataset.kind = kind;
    };
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const feedback = new FormData(form).get(name);
      const { strategy_number: _, ...named } = claim;
      fields.disabled = true;
      tell('Sending…', 'open');
      try {
        const headers = { 'Content-Type': 'application/json', 'X-Rag-Eval-Token': document.querySelector('meta[name="rag-eval-token"]')?.content ?? '' };
        const answer = await fetch('/feedback', { method: 'POST', credentials: 'same-origin', headers, body: JSON.stringify({ ...named, feedback, note: note.value }) });
        const reply = await answer.json();
        if (answer.status === 201) {
          tell(reply.standing === 'already_there' ? 'This was recorded before; nothing was added (' + reply.outcome_id + ').' : 'Recorded as outcome ' + reply.outcome_id + '.', 'good');
          said.set(key, told.textContent);
        } else tell('Not recorded: ' + (typeof reply.error === 'string' ? reply.error : 'status ' + answer.status), 'bad');
      } catch {
        tell('The server gave no answer that can be read, so it is not known whether this was recorded. Send it again: the same said twice is kept once.', 'bad');
      }
      fields.disabled = false;
      send.focus();
    });
    return form;
  };

  // ---------------------------------------------------------------- the panel under a question

  /** Everything about one question. `view` holds the wording and the strategies chosen; `chosen` is called when they change. */
  const detail = (context, at, chosen) => {
    const { summary, questionAt, view, said, root } = context;
    const id = summary.questions.id[at];
    const title = make('h3', { id: 'ex-detail-title', tabindex: -1 }, foreign(summary.questions.text[at] || id));
    const link = make('a', { id: 'ex-link', href: PREFIX }, 'Link to this view');
    const close = make('button', { type: 'button', id: 'ex-close', 'aria-label': 'Close this question' }, 'Close');
    const body = make('div', { class: 'ex-detail-body' }, make('p', { class: 'ex-quiet', role: 'status' }, 'Loading…'));
    const section = make('section', { id: 'ex-detail', 'aria-labelledby': 'ex-detail-title', 'data-state': 'loading' }, make('header', { class: 'ex-detail-head' }, make('div', {}, title, foreign(id, 'ex-id')), make('div', { class: 'ex-detail-tools' }, link, close)), body);

    const failed = (error) => {
      section.dataset.state = 'failed';
      body.replaceChildren(make('p', { class: 'ex-problem', role: 'alert' }, sentence(error)), make('button', { type: 'button', click: load }, 'Try again'));
    };

    const runsOf = (question, strategy, wording) => question.runs.filter((run) => run.s === strategy && run.w === wording);

    const wordingTable = (question, pick) => {
      const strategies = summary.strategies.map((_, s) => s).sort((a, b) => (b === view.strategy) - (a === view.strategy) || a - b);
      const chosenClass = (s) => (s === view.strategy ? 'ex-chosen' : null);
      const cell = (s, w) => {
        const runs = runsOf(question, s, w);
        const values = runs.map((run) => run.value).filter(isNumber);
        const mean = values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
        return make('td', { role: 'cell', 'data-strategy': summary.strategies[s], class: chosenClass(s) }, runs.length === 0 ? absent('not run') : [number(mean, 'not judged'), ' ', make('span', { class: 'ex-first' }, firstGold(runs[0]))]);
      };
      const line = (wording, w) => {
        const radio = make('input', { type: 'radio', name: 'ex-wording', value: w, change: () => pick(w) });
        return make('tr', { role: 'row' }, make('th', { scope: 'row', role: 'rowheader' }, make('label', {}, radio, make('span', {}, foreign(wording.text), ' ', foreign(wording.id, 'ex-id')))), strategies.map((s) => cell(s, w)));
      };
      const heads = strategies.map((s) => make('th', { scope: 'col', role: 'columnheader', class: chosenClass(s) }, foreign(summary.strategies[s])));
      const table = make('table', { id: 'ex-wordings-table', role: 'table' }, make('caption', {}, 'Wordings: ' + summary.measure + ' and rank of the first gold'), make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, make('th', { scope: 'col', role: 'columnheader' }, 'Wording'), heads)), make('tbody', { role: 'rowgroup' }, question.wordings.map(line)));
      return make('div', { class: 'ex-wordings-scroll', role: 'region', tabindex: 0, 'aria-label': 'Wordings of this question' }, table);
    };

    const runArticle = (question, s, w) => {
      const name = summary.strategies[s];
      const wording = question.wordings[w];
      const [run] = runsOf(question, s, w);
      const article = make('article', { class: 'ex-run', 'data-strategy': name, 'data-wording': wording.id }, make('h4', {}, foreign(name)));
      if (run === undefined) {
        article.append(quiet('This strategy was not run on this wording.'));
        return article;
      }
      const fact = (term, ...text) => make('div', {}, make('dt', {}, term), make('dd', {}, text));
      article.append(
        make('dl', { class: 'ex-facts' }, fact(summary.measure, number(run.value, 'not judged')), fact('First gold', firstGold(run)), fact('Miss rate', missRate(run.miss))),
        run.lost ? make('p', { class: 'ex-lost' }, foreign(run.lost)) : '',
        run.failed ? make('p', { class: 'ex-problem' }, 'The retrieval failed; it counts as a miss.') : '',
        run.units.length === 0 ? quiet(run.w > 0 && summary.cut?.[0] === 0 ? 'Its ranks are not in this file: rag-eval view shows them.' : 'Nothing was retrieved.') : make('ol', { class: 'ex-evidence', 'aria-label': 'Ranked evidence' }, run.units.map(ranked(summary, run, question.units))),
      );
      if (root.dataset.feedback === 'on' && root.dataset.source === 'fetch') {
        const claim = { run_id: context.run, query_id: id, paraphrase_id: wording.id, seed: run.seed, strategy: name, strategy_number: s };
        article.append(make('details', { class: 'ex-feedback-fold', open: said.has(JSON.stringify(claim)) }, make('summary', {}, 'Say what is wrong'), feedbackForm(claim, said)));
      }
      return article;
    };

    const show = (question) => {
      const runs = make('div', { class: 'ex-runs' });
      const select = make('select', { id: 'ex-show' }, summary.strategies.map((name) => make('option', { value: name }, name)), summary.strategies.length > 1 ? make('option', { value: ALL }, 'all side by side') : null);
      let wording = Math.max(0, question.wordings.findIndex((one) => one.id === view.w));
      const draw = () => {
        const all = view.show === ALL;
        const named = summary.strategies.indexOf(view.show);
        const strategies = all ? summary.strategies.map((_, s) => s) : [named < 0 ? view.strategy : named];
        select.value = all ? ALL : summary.strategies[strategies[0]];
        link.setAttribute('href', chosen());
        section.classList.toggle('ex-side', all);
        runs.replaceChildren(...strategies.map((s) => runArticle(question, s, wording)));
        section.dataset.state = 'ready';
      };
      const pick = (w) => {
        wording = w;
        view.w = w === 0 ? '' : question.wordings[w].id;
        draw();
      };
      select.addEventListener('change', () => {
        view.show = select.value === summary.strategies[view.strategy] ? '' : select.value;
        draw();
      });
      const table = wordingTable(question, pick);
      table.querySelectorAll('input')[wording]?.setAttribute('checked', '');
      body.replaceChildren(
        table,
        make(
          'div',
          { class: 'ex-columns' },
          make('div', { class: 'ex-main' }, make('div', { class: 'ex-bar' }, make('label', { for: 'ex-show' }, 'Ranked evidence of'), select), runs),
          make('div', { class: 'ex-beside' }, goldPart(question), answerPart(question)),
        ),
      );
      draw();
    };

    async function load() {
      section.dataset.state = 'loading';
      try {
        const question = await questionAt(at, id);
        if (section.isConnected) show(question);
      } catch (error) {
        failed(error);
      }
    }
    return { section, title, close, load };
  };

  // ---------------------------------------------------------------- the view in the address

  const isOurs = (hash) => hash === PREFIX || hash.startsWith(PREFIX + '?');

  const fresh = (summary) => ({ q: '', tag: '', status: '', outcome: '', strategy: summary.primary ?? 0, missed: false, changed: false, sort: '', descending: false, page: 1, size: DEFAULT_SIZE, open: null, w: '', show: '' });

  /** The address of a view: what differs from a fresh one. */
  const written = (summary, view) => {
    const plain = fresh(summary);
    const parts = new URLSearchParams();
    for (const [key, value] of Object.entries(view)) if (value !== plain[key]) parts.set(key, key === 'strategy' ? summary.strategies[value] : key === 'open' ? summary.questions.id[value] : String(value));
    const text = parts.toString();
    return text === '' ? PREFIX : PREFIX + '?' + text;
  };

  /** What an address asks for; whatever it holds that is not known is left aside. */
  const read = (summary, columns, hash) => {
    const view = fresh(summary);
    const parts = new URLSearchParams(hash.slice(PREFIX.length + 1));
    const known = (key, names) => (names.includes(parts.get(key)) ? parts.get(key) : '');
    const { questions, strategies } = summary;
    for (const key of [...FLAGS, 'descending']) view[key] = parts.get(key) === 'true';
    view.q = parts.get('q') ?? '';
    view.tag = known('tag', questions.tags.flat());
    view.status = known('status', questions.status.flat());
    view.outcome = known('outcome', [...questions.outcome, NO_ANSWER]);
    view.strategy = strategies.includes(parts.get('strategy')) ? strategies.indexOf(parts.get('strategy')) : view.strategy;
    view.sort = known('sort', columns.map((column) => column.key));
    view.page = Math.max(1, Number.parseInt(parts.get('page') ?? '1', 10) || 1);
    view.size = SIZES.includes(Number(parts.get('size'))) ? Number(parts.get('size')) : view.size;
    view.open = questions.id.includes(parts.get('open')) ? questions.id.indexOf(parts.get('open')) : null;
    view.w = parts.get('w') ?? '';
    view.show = known('show', [...strategies, ALL]);
    return view;
  };

  // ---------------------------------------------------------------- the table of questions

  const labelled = (label, control) => make('label', { class: 'ex-field', for: control.id }, make('span', {}, label), control);

  const explore = (root, summary, questionAt) => {
    const { questions } = summary;
    const columns = columnsOf(summary);
    const searched = questions.id.map((id, at) => (id + '\n' + questions.text[at]).toLowerCase());
    const said = new Map();
    const run = root.dataset.run ?? (root.dataset.base ?? '').split('/').filter(Boolean).pop() ?? '';
    let view = fresh(summary);
    let order = [];
    let orderedBy = '';
    let shown = [];
    let opened = null;

    const changes = summary.strategies.map((_, s) => questions.change[s].some(isNumber));
    const chosenSort = () => (view.sort !== '' ? [view.sort, view.descending] : [changes[view.strategy] ? 'change' : 'value', false]);

    const search = make('input', { type: 'search', id: 'ex-search', autocomplete: 'off', spellcheck: 'false', placeholder: 'id or text' });
    const strategy = make('select', { id: 'ex-strategy' });
    const selects = new Map([['tag', 'Tag'], ['status', 'Status of the miss rate'], ['outcome', 'Answer']].map(([key, label]) => [key, { label, control: make('select', { id: 'ex-' + key }) }]));
    const flags = new Map(FLAGS.map((key) => [key, make('input', { type: 'checkbox', id: 'ex-' + key })]));
    const reset = make('button', { type: 'button', id: 'ex-reset' }, 'Clear filters');
    const size = make('select', { id: 'ex-size' });
    const count = make('p', { id: 'ex-count', role: 'status', 'aria-live': 'polite' });
    const ordering = make('p', { id: 'ex-order' });
    const page = make('span', { id: 'ex-page' });
    const body = make('tbody', { role: 'rowgroup' });

    const tagged = new Map();
    for (const each of questions.tags.flat()) tagged.set(each, (tagged.get(each) ?? 0) + 1);
    choices(strategy, summary.strategies.map((name, s) => [name, s === summary.primary ? name + ' (primary)' : name]));
    const distinct = (names) => [['', 'any'], ...[...new Set(names)].filter((name) => name !== null).map((name) => [name, spoken(name)])];
    choices(selects.get('tag').control, [['', 'any'], ...[...tagged].map(([name, n]) => [name, name + ' (' + n + ')'])]);
    choices(selects.get('status').control, distinct(questions.status.flat()));
    choices(selects.get('outcome').control, [...distinct(questions.outcome), [NO_ANSWER, 'no answer']]);
    choices(size, SIZES.map((n) => [n, n]));

    const heads = new Map(
      columns.map((column) => [column.key, make('th', { scope: 'col', role: 'columnheader', 'data-column': column.key, class: column.numeric ? 'ex-numeric' : null }, make('button', { type: 'button', title: column.about, click: () => sort(column) }, column.label))]),
    );
    const step = (id, label, text, move) => make('button', { type: 'button', id, 'aria-label': label, click: (event) => (event.currentTarget.getAttribute('aria-disabled') === 'true' ? null : turn(move())) }, text);
    const pages = () => Math.max(1, Math.ceil(shown.length / view.size));
    const previous = step('ex-previous', 'Previous page', '‹', () => view.page - 1);
    const next = step('ex-next', 'Next page', '›', () => view.page + 1);
    const names = { missed: 'missed only', changed: 'changed only' };
    const meanings = {
      missed: 'no gold in the top ' + CUTOFF + ' of the original wording',
      changed: summary.measure + ' differs from the previous run',
    };
    const filters = make(
      'form',
      { id: 'ex-filters', role: 'search', 'aria-label': 'Filter the questions', submit: (event) => event.preventDefault() },
      make('div', { class: 'ex-fields' }, labelled('Search', search), labelled('Strategy', strategy), [...selects.values()].map(({ label, control }) => labelled(label, control))),
      make('div', { class: 'ex-flags' }, [...flags].map(([key, box]) => make('label', { title: meanings[key] }, box, ' ', names[key])), reset),
    );
    const table = make(
      'table',
      { id: 'ex-table', role: 'table' },
      make('caption', { class: 'ex-hidden' }, 'Questions of the gold set ', foreign(summary.gold_set), ' with figures of the chosen strategy'),
      make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, [...heads.values()])),
      body,
    );
    const region = make('div', { class: 'ex-scroll', role: 'region', tabindex: 0, 'aria-label': 'Table of questions' }, table);
    const pager = make('nav', { id: 'ex-pager', 'aria-label': 'Pages of questions' }, make('span', { class: 'ex-steps' }, previous, page, next), make('label', { class: 'ex-size-label', for: 'ex-size' }, make('span', {}, 'a page'), size));
    const { cut } = summary;
    const left = cut === undefined ? null : make('p', { class: 'ex-quiet' }, 'To keep this file small it holds the first ' + cut[0] + ' ranks of wordings beside the original one, and the texts of the first ' + cut[1] + ' ranks under the original one; rag-eval view shows all.');
    root.replaceChildren(...[filters, make('div', { class: 'ex-told-row' }, count, ordering), region, pager, left].filter((part) => part !== null));

    // -------- rows

    const cell = (column, ...children) => make('td', { role: 'cell', 'data-column': column.key, 'data-label': column.label, class: column.numeric ? 'ex-numeric' : null }, children);

    const cells = {
      tags: (at) => {
        const own = questions.tags[at];
        if (own.length === 0) return absent('no tags');
        return [own.slice(0, TAGS_IN_ROW).map((each) => foreign(each, 'ex-tag')), own.length > TAGS_IN_ROW ? make('span', { class: 'ex-quiet' }, '+' + (own.length - TAGS_IN_ROW)) : null];
      },
      value: (at, s) => number(questions.value[s][at], 'not judged'),
      change: (at, s) => {
        const change = questions.change[s][at];
        if (!isNumber(change)) return absent('not comparable with a previous run');
        if (change === 0) return make('span', { class: 'ex-same' }, '0.000');
        return make('span', { class: change < 0 ? 'ex-worse' : 'ex-better' }, (change > 0 ? '+' : '') + fixed(change));
      },
      first: (at, s) => {
        const [rank, lost] = [questions.first[s][at], questions.lost[s][at]];
        const shown = isNumber(rank) ? String(rank) : isNumber(questions.value[s][at]) ? make('span', { class: 'ex-worse' }, 'none') : absent('not judged');
        return lost === null ? shown : [shown, make('span', { class: 'ex-quiet ex-lost-by', title: 'the step that lost the gold' }, lost)];
      },
      hits: (at, s) => (isNumber(questions.hits[s][at]) && questions.runs[s][at] > 0 ? questions.hits[s][at] + ' / ' + questions.runs[s][at] : absent('not judged')),
      miss: (at, s) => {
        const name = questions.status[s][at];
        return [make('span', { class: 'ex-figure' }, number(questions.miss[s][at], 'no miss rate is stated')), ' ', statusOf(name)];
      },
      outcome: (at) => {
        const name = questions.outcome[at];
        return name ? make('span', { class: 'ex-outcome', 'data-outcome': name }, foreign(spoken(name))) : absent('no answer');
      },
      citations: (at) => (questions.cited[at] > 0 ? (questions.correct[at] ?? 0) + ' / ' + questions.cited[at] : absent('no citations')),
    };

    const row = (at) => {
      const open = make('button', { type: 'button', class: 'ex-open', 'aria-expanded': 'false' }, make('span', { class: 'ex-text' }, foreign(questions.text[at] || questions.id[at])));
      const line = make(
        'tr',
        { class: 'ex-row', role: 'row', 'data-index': at },
        make('th', { scope: 'row', role: 'rowheader', 'data-column': 'question' }, open, foreign(questions.id[at], 'ex-id')),
        columns.slice(1).map((column) => cell(column, cells[column.key](at, view.strategy))),
      );
      open.addEventListener('click', () => toggle(at));
      return line;
    };

    const lineOf = (at) => body.querySelector('tr[data-index="' + at + '"]');

    // -------- opening and closing

    const hashOf = () => written(summary, view);
    const keep = () => {
      const hash = hashOf();
      if (location.hash === hash || (hash === PREFIX && !isOurs(location.hash))) return;
      history.replaceState(history.state, '', hash);
    };

    const shut = (focus) => {
      if (opened === null) return;
      const line = lineOf(opened.at);
      opened.line.remove();
      line?.classList.remove('ex-is-open');
      const button = line?.querySelector('.ex-open');
      button?.setAttribute('aria-expanded', 'false');
      button?.removeAttribute('aria-controls');
      opened = null;
      view.open = null;
      view.w = '';
      view.show = '';
      if (focus) button?.focus();
    };

    const unfold = (at, focus) => {
      const line = lineOf(at);
      if (line === null) return;
      view.open = at;
      const panel = detail({ summary, questionAt, view, said, root, run }, at, () => {
        keep();
        return hashOf();
      });
      const holder = make('tr', { class: 'ex-detail-row', role: 'row' }, make('td', { role: 'cell', colspan: columns.length }, panel.section));
      holder.addEventListener('keydown', (event) => {
        const unsent = event.target instanceof HTMLTextAreaElement && event.target.value !== '';
        if (event.key !== 'Escape' || unsent) return;
        event.stopPropagation();
        shut(true);
        keep();
      });
      panel.close.addEventListener('click', () => {
        shut(true);
        keep();
      });
      line.after(holder);
      line.classList.add('ex-is-open');
      const button = line.querySelector('.ex-open');
      button.setAttribute('aria-expanded', 'true');
      button.setAttribute('aria-controls', 'ex-detail');
      opened = { at, line: holder };
      void panel.load();
      if (focus) panel.title.focus({ preventScroll: true });
    };

    const toggle = (at) => {
      const same = opened?.at === at;
      shut(same);
      if (!same) {
        unfold(at, true);
        lineOf(at).scrollIntoView({ block: 'nearest' });
      }
      keep();
    };

    // -------- drawing

    const sortedSentence = () => {
      const [key, descending] = chosenSort();
      const change = questions.change[view.strategy].filter(isNumber);
      const by = 'Sorted by ' + columns.find((column) => column.key === key).label + (descending ? ', highest first. ' : ', lowest first. ');
      if (summary.previous === null || summary.previous === undefined) return [by, 'No previous run to compare with', summary.previous_reason ? [': ', foreign(summary.previous_reason)] : '', '.'].flat();
      const changes = (summary.previous_changes ?? []).join('; ');
      const caveat = summary.previous_comparable === false ? ' The two are not comparable: ' : ' Changed between the two: ';
      return [by, 'Compared with run ', foreign(summary.previous, 'ex-code-text'), ': ', plural(change.filter((x) => x < 0).length, 'question', 'questions') + ' fell, ' + change.filter((x) => x > 0).length + ' rose.', ...(changes === '' ? [] : [caveat, foreign(changes), '.'])];
    };

    const drawPage = () => {
      const from = (view.page - 1) * view.size;
      const rows = shown.slice(from, from + view.size);
      body.replaceChildren(...(rows.length > 0 ? rows.map(row) : [make('tr', { role: 'row' }, make('td', { role: 'cell', colspan: columns.length, class: 'ex-nothing' }, 'No question fits these filters.'))]));
      page.textContent = 'Page ' + view.page + ' of ' + pages();
      previous.setAttribute('aria-disabled', String(view.page <= 1));
      next.setAttribute('aria-disabled', String(view.page >= pages()));
      const all = shown.length === summary.n_questions ? '' : ' (' + summary.n_questions.toLocaleString('en') + ' in all)';
      count.textContent = shown.length === 0 ? 'No question shown' + all : 'Questions ' + (from + 1).toLocaleString('en') + '–' + (from + rows.length).toLocaleString('en') + ' of ' + shown.length.toLocaleString('en') + all;
    };

    /** Sort, filter and draw; an open question stays open where it is still on the page. */
    const draw = ({ find = false } = {}) => {
      const wanted = view.open;
      const kept = { w: view.w, show: view.show };
      const [key, descending] = chosenSort();
      const by = [view.strategy, key, descending].join(' ');
      if (by !== orderedBy) order = sorted(summary, view.strategy, columns.find((column) => column.key === key), descending);
      orderedBy = by;
      shown = order.filter(filter(summary, searched, view));
      if (find && wanted !== null && shown.includes(wanted)) view.page = Math.floor(shown.indexOf(wanted) / view.size) + 1;
      view.page = Math.min(view.page, pages());
      shut(false);
      Object.assign(view, { open: null, w: '', show: '' });
      for (const [name, head] of heads) {
        if (name === key) head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
        else head.removeAttribute('aria-sort');
      }
      ordering.replaceChildren(...sortedSentence());
      drawPage();
      if (wanted !== null && lineOf(wanted) !== null) {
        Object.assign(view, kept);
        unfold(wanted, false);
      }
      keep();
    };

    const controls = () => {
      search.value = view.q;
      strategy.value = summary.strategies[view.strategy];
      for (const [key, { control }] of selects) control.value = view[key];
      for (const [key, box] of flags) box.checked = view[key];
      size.value = String(view.size);
    };

    const change = (values) => {
      Object.assign(view, values, { page: 1 });
      draw();
    };

    const sort = (column) => {
      const [key, descending] = chosenSort();
      change({ sort: column.key, descending: key === column.key ? !descending : column.down === true });
    };

    const turn = (to) => {
      view.open = null;
      view.page = Math.min(Math.max(1, to), pages());
      draw();
      if (region.getBoundingClientRect().top < 0) region.scrollIntoView({ block: 'start' });
    };

    search.addEventListener('input', () => change({ q: search.value }));
    strategy.addEventListener('change', () => change({ strategy: strategy.selectedIndex, show: '' }));
    for (const [key, { control }] of selects) control.addEventListener('change', () => change({ [key]: control.value }));
    for (const [key, box] of flags) box.addEventListener('change', () => change({ [key]: box.checked }));
    size.addEventListener('change', () => change({ size: Number(size.value) }));
    reset.addEventListener('click', () => {
      view = { ...fresh(summary), strategy: view.strategy, size: view.size };
      controls();
      draw();
    });

    /** Show what the address asks for. An address of another part of the page leaves the view as it is. */
    const visit = () => {
      view = read(summary, columns, location.hash);
      controls();
      draw({ find: true });
      (opened === null ? root : lineOf(opened.at)).scrollIntoView({ block: 'start' });
    };
    window.addEventListener('hashchange', () => {
      if (isOurs(location.hash) && location.hash !== hashOf()) visit();
    });
    if (isOurs(location.hash)) visit();
    else {
      controls();
      draw();
    }
  };

  // ---------------------------------------------------------------- start

  const start = async (root) => {
    root.dataset.state = 'loading';
    root.replaceChildren(make('p', { class: 'ex-quiet', role: 'status' }, 'Loading the questions…'));
    try {
      const reading = reader(root);
      const summary = checked(await reading('summary'));
      explore(root, summary, questionsOf(reading, summary.per_part));
      root.dataset.state = 'ready';
    } catch (error) {
      root.replaceChildren(make('p', { id: 'ex-problem', class: 'ex-problem', role: 'alert' }, sentence(error)));
      root.dataset.state = 'failed';
    }
  };

  const begin = () => {
    const root = document.getElementById('explorer');
    if (root !== null) void start(root);
  };
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', begin);
  else begin();
})();
