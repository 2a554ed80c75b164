/*
 * The per-question explorer of the report and of `rag-eval view`: a table of questions to sort and filter, and the
 * evidence behind each.
 *
 * Its data are the parts that rag_eval.pipeline.explorer writes: embedded in the page as base64 of gzip, or fetched from
 * the viewer. Every text is data: it becomes text nodes and attribute values, never markup. An address becomes a link
 * only if it is http or https. Only one page of the table is in the document.
 */
(() => {
  'use strict';

  const PAGE_SIZE = 20;
  const CUTOFF = 10; // of R@10; the miss rate has a K of its own
  const PREFIX = '#explorer';
  const PER_STRATEGY = ['value', 'change', 'first', 'hits', 'runs', 'miss', 'status', 'state', 'lost'];
  const DAMAGED = 'The data of the explorer are damaged, or of another version of rag-eval: ';

  /** An error whose message is a sentence for the reader. */
  class Told extends Error {}

  // ---- Elements

  /**
   * An element. Attributes that are null or false are left out, and functions become listeners. Children are nodes, or
   * texts that stay texts.
   */
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

  /** A text of the data, isolated from the direction of the text around it. */
  const foreign = (text, kind) => make('bdi', { class: kind }, String(text ?? ''));

  const quiet = (text) => make('p', { class: 'ex-quiet' }, text);
  const problem = (error) => {
    const told = error instanceof Told ? error.message : DAMAGED + error.message;
    return make('p', { id: 'ex-problem', class: 'ex-problem', role: 'alert' }, told);
  };

  /** A dash with the reason why a figure is absent, for those who point at it or hear it. */
  const absent = (reason) => {
    const dash = make('span', { 'aria-hidden': 'true' }, '–');
    return make('span', { class: 'ex-quiet', title: reason }, dash, make('span', { class: 'ex-hidden' }, reason));
  };

  const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
  const fixed = (value, digits = 3) => value.toFixed(digits).replace('-', '−');
  const number = (value, reason, digits) => (isNumber(value) ? fixed(value, digits) : absent(reason));

  /** A link that tells the other side nothing; the text alone if the address is not http or https. */
  const linked = (address, text) => {
    const label = foreign(text, 'ex-doc');
    if (typeof address !== 'string' || !/^https?:\/\/[^\s]/i.test(address) || !URL.canParse(address)) return label;
    return make('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, label);
  };

  /** A document and the section in it, without the document's name in front of the section. */
  const placeOf = (item) => {
    const section = String(item.section ?? '');
    const within = section.startsWith(item.doc + '#') ? section.slice(item.doc.length) : section;
    const isWhole = section === '' || section === item.doc;
    return [linked(item.link, item.doc), isWhole ? null : [' ', foreign(within, 'ex-quiet')]];
  };

  // ---- Data

  const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

  const inflated = async (base64) => {
    if (typeof DecompressionStream !== 'function') {
      throw new Told('This browser is too old to unpack the data of the explorer: it lacks DecompressionStream.');
    }
    return new Response(new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
  };

  /** A function that reads a part of the data by name, from the page or from the viewer. */
  const reader = (root) => async (name) => {
    if (root.dataset.source !== 'fetch') {
      const block = document.getElementById('bundle-' + name);
      if (block === null) throw new Error('this file lacks the part ' + name);
      return inflated(block.textContent);
    }
    const answer = await fetch(root.dataset.base + 'explorer/' + name + '.json', { credentials: 'same-origin' }).catch(() => {
      throw new Told('The server does not answer. Is rag-eval view still running?');
    });
    if (!answer.ok) throw new Told('The server has no part ' + name + ' of this run (status ' + answer.status + ').');
    return answer.json();
  };

  /** A function that returns a question. Each part is read once; a part that failed is read again. */
  const questionsOf = (read, size) => {
    const parts = new Map();
    return async (at, id) => {
      const name = 'questions-' + String(Math.floor(at / size)).padStart(4, '0');
      if (!parts.has(name)) parts.set(name, read(name));
      const part = await parts.get(name).catch((error) => {
        parts.delete(name);
        throw error;
      });
      const question = part[at % size];
      if (question?.id !== id) throw new Error('another question has the place of this one');
      return question;
    };
  };

  /** Check that every column of the summary has a value for each question. */
  const check = (summary) => {
    const isWhole = (column) => Array.isArray(column) && column.length === summary.n_questions;
    const columns = Object.entries(summary.questions);
    const bad = columns.filter(([key, column]) => {
      const isPerStrategy = PER_STRATEGY.includes(key) && column.length === summary.strategies.length;
      return !isWhole(column) && !(isPerStrategy && column.every(isWhole));
    });
    if (columns.length === 0 || bad.length > 0) throw new Error('incomplete columns ' + bad.map(([key]) => key).join(', '));
  };

  // ---- Columns of the table: what each shows, and the value that it is sorted by; null comes last

  const statusOf = (name) => make('span', { class: 'ex-status', 'data-status': name }, name);

  const columnsOf = ({ questions, measure, level, target, k }) => [
    { key: 'question', label: 'Question', about: 'Id and text in the original wording.', by: (at) => questions.id[at] },
    {
      key: 'value',
      label: measure,
      about: measure + ' at the ' + level + ' level, mean over wordings and seeds.',
      by: (at, s) => questions.value[s][at],
      show: (at, s) => number(questions.value[s][at], 'not judged'),
    },
    {
      key: 'change',
      label: 'Change',
      about: measure + ' minus the previous run’s.',
      by: (at, s) => questions.change[s][at],
      show: (at, s) => {
        const change = questions.change[s][at];
        if (!isNumber(change)) return absent('not comparable with a previous run');
        const kind = change < 0 ? 'ex-worse' : change > 0 ? 'ex-better' : 'ex-quiet';
        return make('span', { class: kind }, (change > 0 ? '+' : '') + fixed(change));
      },
    },
    {
      key: 'first',
      label: 'First gold',
      about: 'Rank of the first gold in the original wording; none if it is not within the depth of the run.',
      by: (at, s) => questions.first[s][at] ?? (isNumber(questions.value[s][at]) ? Infinity : null),
      down: true,
      show: (at, s) => {
        const lost = questions.lost[s][at];
        const step = make('span', { class: 'ex-quiet ex-lost-by', title: 'the step that lost the gold' }, lost ?? '');
        return [firstGold({ first: questions.first[s][at], value: questions.value[s][at] }), step];
      },
    },
    {
      key: 'miss',
      label: 'Miss rate',
      about: 'Stated ' + target + '@' + k + ' of the original wording, with its status.',
      by: (at, s) => questions.miss[s][at],
      down: true,
      show: (at, s) => [number(questions.miss[s][at], 'no miss rate is stated'), ' ', statusOf(questions.status[s][at])],
    },
  ];

  const firstGold = ({ first, value }) => {
    if (isNumber(first)) return String(first);
    return isNumber(value) ? make('span', { class: 'ex-worse', title: 'no gold within the depth of the run' }, 'none') : absent('not judged');
  };

  const collator = new Intl.Collator('en', { numeric: true });

  /** Compare two values of a column; null comes last in both directions. */
  const compare = (a, b, descending) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (a === b) return 0;
    return (typeof a === 'string' ? collator.compare(a, b) : a - b) * (descending ? -1 : 1);
  };

  /** Sort numbers of questions by a column; ties by the lowest measure, then the highest miss rate. */
  const sort = (places, { questions }, s, column, descending) => {
    const key = (at) => column.by(at, s) ?? null;
    return places.sort(
      (a, b) =>
        compare(key(a), key(b), descending) ||
        compare(questions.value[s][a], questions.value[s][b], false) ||
        compare(questions.miss[s][a], questions.miss[s][b], true) ||
        a - b,
    );
  };

  // ---- The evidence behind a question

  /** One ranked passage. */
  const ranked = (level, run, units) => (place, at) => {
    const unit = units[place];
    const isHit = run.hits.includes(at);
    const trust = unit.verdict + (isNumber(unit.trust) ? ' · trust ' + fixed(unit.trust, 2) : '');
    const rank = make('span', { class: 'ex-rank' }, make('span', { class: 'ex-hidden' }, 'Rank '), String(at + 1));
    const score = make('span', { class: 'ex-score ex-quiet' }, number(run.scores[at] ?? null, 'no score', 4));
    const title = unit.title && unit.title !== unit.doc ? [' ', foreign(unit.title, 'ex-quiet')] : null;
    const hit = isHit ? make('span', { class: 'ex-good' }, 'gold ' + level) : null;
    const reasons = unit.reasons.map((reason) => foreign(reason, 'ex-id'));
    const pieces = unit.text?.map((piece, n) => (n % 2 === 1 ? make('mark', {}, piece) : piece));
    return make(
      'li',
      { class: isHit ? 'ex-unit ex-hit' : 'ex-unit' },
      make('div', { class: 'ex-unit-head' }, rank, make('span', {}, placeOf(unit), title), score),
      make('p', { class: 'ex-text-of' }, pieces === undefined ? 'The text is not in this file: rag-eval view shows it.' : make('bdi', {}, pieces)),
      make('p', { class: 'ex-badges' }, hit, make('span', { class: 'ex-trust', 'data-verdict': unit.verdict }, trust), reasons),
    );
  };

  const part = (title, ...children) => make('section', { class: 'ex-part' }, make('h4', {}, title), children);
  const quoted = (item) => {
    const quote = item.quote ? make('blockquote', { class: 'ex-quote' }, foreign(item.quote)) : null;
    return [make('div', {}, placeOf(item)), quote];
  };

  const goldPart = ({ gold }) => {
    if (gold.length === 0) return part('Gold', quiet('The gold set names no evidence for this question.'));
    return part('Gold', make('ul', {}, gold.map((item) => make('li', {}, quoted(item)))));
  };

  const citation = (cited) => {
    const [kind, words] = cited.correct ? ['ex-good', 'correct'] : cited.correct === false ? ['ex-bad', 'not correct'] : ['ex-quiet', 'not judged'];
    return make('li', {}, quoted(cited), make('p', { class: 'ex-badges' }, make('span', { class: 'ex-correct ' + kind }, words), foreign(cited.code, 'ex-id')));
  };

  const answerPart = ({ answer }) => {
    if (!answer) return part('Answer', quiet('This run has no answer to this question.'));
    const grounded = isNumber(answer.groundedness) ? ' · groundedness ' + fixed(answer.groundedness) : null;
    return part(
      'Answer',
      make('p', {}, foreign(answer.outcome.replaceAll('_', ' ')), grounded, ' · from ', foreign(answer.strategy)),
      answer.text ? make('p', { class: 'ex-text-of' }, foreign(answer.text)) : null,
      answer.citations.length === 0 ? quiet('It cites nothing.') : make('ol', { class: 'ex-citations' }, answer.citations.map(citation)),
    );
  };

  const retrieval = (question, s, w) => question.runs.find((run) => run.s === s && run.w === w);

  /** The wordings with the first gold of every strategy; `pick` gets the number of the chosen wording. */
  const wordingTable = ({ strategies, measure }, question, chosen, pick) => {
    const kind = (s) => (s === chosen ? 'ex-chosen' : null);
    const cell = (w) => (name, s) => {
      const run = retrieval(question, s, w);
      const figures = run === undefined ? absent('not run') : [number(run.value, 'not judged'), ' · ', firstGold(run)];
      return make('td', { role: 'cell', 'data-label': name, class: kind(s) }, figures);
    };
    const line = (wording, w) => {
      const radio = make('input', { type: 'radio', name: 'ex-wording', value: w, checked: w === 0, change: () => pick(w) });
      const label = make('label', {}, radio, make('span', {}, foreign(wording.text), ' ', foreign(wording.id, 'ex-id')));
      return make('tr', { role: 'row' }, make('th', { scope: 'row', role: 'rowheader' }, label), strategies.map(cell(w)));
    };
    const head = (name, s) => make('th', { scope: 'col', role: 'columnheader', class: kind(s) }, foreign(name));
    const heads = [make('th', { scope: 'col', role: 'columnheader' }, 'Wording'), strategies.map(head)];
    const table = make(
      'table',
      { id: 'ex-wordings-table', role: 'table' },
      make('caption', {}, 'Wordings: ' + measure + ' · rank of the first gold'),
      make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, heads)),
      make('tbody', { role: 'rowgroup' }, question.wordings.map(line)),
    );
    return make('div', { class: 'ex-scroll', role: 'region', tabindex: 0, 'aria-label': 'Wordings of this question' }, table);
  };

  /** What one strategy retrieved for one wording. */
  const runArticle = ({ strategies, level, measure, cut }, question, s, w) => {
    const run = retrieval(question, s, w);
    const about = { class: 'ex-part ex-run', 'data-strategy': strategies[s], 'data-wording': question.wordings[w].id };
    const title = make('h4', {}, 'Ranked evidence of ', foreign(strategies[s]));
    if (run === undefined) return make('article', about, title, quiet('This strategy was not run on this wording.'));
    const [value, low, high, status, calibrator] = run.miss;
    const range = isNumber(low) && isNumber(high) ? ' [' + fixed(low) + ', ' + fixed(high) + ']' : '';
    const by = calibrator ? [' by ', foreign(calibrator.slice(0, 16), 'ex-id')] : null;
    const fact = (term, ...texts) => make('div', {}, make('dt', {}, term), make('dd', {}, texts));
    const rate = fact('Miss rate', number(value, 'no miss rate is stated'), range, ' ', statusOf(status), by);
    const facts = [fact(measure, number(run.value, 'not judged')), fact('First gold', firstGold(run)), rate];
    const left = cut?.[0] === 0 && w > 0 ? 'Its ranks are not in this file: rag-eval view shows them.' : 'Nothing was retrieved.';
    return make(
      'article',
      about,
      title,
      make('dl', { class: 'ex-facts' }, facts),
      run.lost ? make('p', { class: 'ex-lost' }, foreign(run.lost)) : null,
      run.failed ? make('p', { class: 'ex-problem' }, 'The retrieval failed; it counts as a miss.') : null,
      run.units.length === 0 ? quiet(left) : make('ol', { class: 'ex-evidence', 'aria-label': 'Ranked evidence' }, run.units.map(ranked(level, run, question.units))),
    );
  };

  /** The panel under a question; it loads the question by itself. */
  const detail = (summary, questionAt, s, at, close) => {
    const id = summary.questions.id[at];
    const title = make('h3', { id: 'ex-detail-title', tabindex: -1 }, foreign(summary.questions.text[at] || id));
    const button = make('button', { type: 'button', id: 'ex-close', 'aria-label': 'Close this question', click: close }, 'Close');
    const head = make('header', { class: 'ex-detail-head' }, make('div', {}, title, foreign(id, 'ex-id')), button);
    const body = make('div', { class: 'ex-detail-body' }, make('p', { class: 'ex-quiet', role: 'status' }, 'Loading…'));
    const section = make('section', { id: 'ex-detail', 'aria-labelledby': title.id, 'data-state': 'loading' }, head, body);
    const show = (question) => {
      const runs = make('div', { class: 'ex-main' });
      const pick = (w) => runs.replaceChildren(runArticle(summary, question, s, w));
      const beside = make('div', { class: 'ex-beside' }, goldPart(question), answerPart(question));
      body.replaceChildren(wordingTable(summary, question, s, pick), make('div', { class: 'ex-columns' }, runs, beside));
      pick(0);
      section.dataset.state = 'ready';
    };
    questionAt(at, id).then(show).catch((error) => {
      section.dataset.state = 'failed';
      body.replaceChildren(problem(error));
    });
    return section;
  };

  // ---- The view in the address

  const isOurs = (hash) => hash === PREFIX || hash.startsWith(PREFIX + '?');

  const fresh = (summary) => ({ q: '', strategy: summary.primary ?? 0, status: '', missed: false, sort: '', descending: false, page: 1, open: null });

  /** Write the address of a view: whatever differs from a fresh one. */
  const written = (summary, view) => {
    const plain = fresh(summary);
    const names = { strategy: summary.strategies[view.strategy], open: summary.questions.id[view.open] };
    const parts = new URLSearchParams();
    for (const [key, value] of Object.entries(view)) if (value !== plain[key]) parts.set(key, names[key] ?? String(value));
    return parts.size === 0 ? PREFIX : PREFIX + '?' + parts;
  };

  /** Read the view of an address; unknown values are ignored. */
  const read = ({ questions, strategies, primary }, columns, hash) => {
    const parts = new URLSearchParams(hash.slice(PREFIX.length + 1));
    const place = (key, names, otherwise) => (names.includes(parts.get(key)) ? names.indexOf(parts.get(key)) : otherwise);
    const known = (key, names) => (names.includes(parts.get(key)) ? parts.get(key) : '');
    return {
      q: parts.get('q') ?? '',
      strategy: place('strategy', strategies, primary ?? 0),
      status: known('status', questions.status.flat()),
      missed: parts.get('missed') === 'true',
      sort: known('sort', columns.map((column) => column.key)),
      descending: parts.get('descending') === 'true',
      page: Math.max(1, Number.parseInt(parts.get('page') ?? '1', 10) || 1),
      open: place('open', questions.id, null),
    };
  };

  // ---- The table of questions

  const explore = (root, summary, questionAt) => {
    const { questions, strategies } = summary;
    const columns = columnsOf(summary);
    const searched = questions.id.map((id, at) => (id + '\n' + questions.text[at]).toLowerCase());
    let view = fresh(summary);
    let shown = [];

    const change = (values) => {
      Object.assign(view, { page: 1 }, values);
      draw();
    };
    const ordering = () => {
      if (view.sort !== '') return { key: view.sort, descending: view.descending };
      return { key: questions.change[view.strategy].some(isNumber) ? 'change' : 'value', descending: false };
    };
    const pages = () => Math.max(1, Math.ceil(shown.length / PAGE_SIZE));

    const search = make('input', { type: 'search', id: 'ex-search', autocomplete: 'off', spellcheck: 'false', placeholder: 'id or text', input: () => change({ q: search.value }) });
    const choice = (key, options, taken) =>
      make('select', { id: 'ex-' + key, change: (event) => change({ [key]: taken(event.target) }) }, options.map(([value, label]) => make('option', { value }, label)));
    const strategy = choice('strategy', strategies.map((name, s) => [name, s === summary.primary ? name + ' (primary)' : name]), (select) => select.selectedIndex);
    const status = choice('status', [['', 'any'], ...[...new Set(questions.status.flat())].map((name) => [name, name])], (select) => select.value);
    const missed = make('input', { type: 'checkbox', id: 'ex-missed', change: () => change({ missed: missed.checked }) });
    const field = (label, control) => make('label', { class: 'ex-field', for: control.id }, make('span', {}, label), control);
    const filters = make(
      'form',
      { id: 'ex-filters', role: 'search', 'aria-label': 'Filter the questions', submit: (event) => event.preventDefault() },
      field('Search', search),
      field('Strategy', strategy),
      field('Status of the miss rate', status),
      make('label', { class: 'ex-flag', title: 'no gold in the top ' + CUTOFF + ' of the original wording' }, missed, ' missed only'),
    );

    const resort = (column) => {
      const { key, descending } = ordering();
      change({ sort: column.key, descending: key === column.key ? !descending : column.down === true });
    };
    const heads = columns.map((column) => make('th', { scope: 'col', role: 'columnheader', 'data-column': column.key }, make('button', { type: 'button', title: column.about, click: () => resort(column) }, column.label)));
    const caption = make('caption', { class: 'ex-hidden' }, 'Questions of the gold set ', foreign(summary.gold_set), ' with figures of the chosen strategy');
    const body = make('tbody', { role: 'rowgroup' });
    const table = make('table', { id: 'ex-table', role: 'table' }, caption, make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, heads)), body);
    const region = make('div', { class: 'ex-scroll', role: 'region', tabindex: 0, 'aria-label': 'Table of questions' }, table);

    const turn = (step) => {
      const page = view.page + step;
      if (page < 1 || page > pages()) return;
      change({ page, open: null });
      if (region.getBoundingClientRect().top < 0) region.scrollIntoView({ block: 'start' });
    };
    const previous = make('button', { type: 'button', id: 'ex-previous', 'aria-label': 'Previous page', click: () => turn(-1) }, '‹');
    const next = make('button', { type: 'button', id: 'ex-next', 'aria-label': 'Next page', click: () => turn(1) }, '›');
    const page = make('span', { id: 'ex-page' });
    const count = make('p', { id: 'ex-count', role: 'status', 'aria-live': 'polite' });
    const order = make('p', { id: 'ex-order', class: 'ex-quiet' });
    const { cut } = summary;
    const left = cut && quiet('To keep this file small it holds the first ' + cut[0] + ' ranks of other wordings, and the texts of the first ' + cut[1] + ' ranks; rag-eval view shows all.');
    const pager = make('nav', { id: 'ex-pager', 'aria-label': 'Pages of questions' }, previous, page, next);
    root.replaceChildren(filters, make('div', { class: 'ex-told-row' }, count, order), region, pager, left ?? '');

    const lineOf = (at) => body.querySelector('tr[data-index="' + at + '"]');

    /** Open a question, or close the open one, and move the focus there. */
    const toggle = (at) => {
      view.open = view.open === at ? null : at;
      draw();
      if (view.open === null) lineOf(at).querySelector('.ex-open').focus();
      else {
        body.querySelector('#ex-detail-title').focus({ preventScroll: true });
        lineOf(at).scrollIntoView({ block: 'nearest' });
      }
    };

    const row = (at) => {
      const isOpen = view.open === at;
      const about = { type: 'button', class: 'ex-open', 'aria-expanded': String(isOpen), 'aria-controls': isOpen ? 'ex-detail' : null, click: () => toggle(at) };
      const open = make('button', about, make('span', { class: 'ex-text' }, foreign(questions.text[at] || questions.id[at])));
      const cells = columns.slice(1).map(({ key, label, show }) => make('td', { role: 'cell', 'data-column': key, 'data-label': label }, show(at, view.strategy)));
      const head = make('th', { scope: 'row', role: 'rowheader', 'data-column': 'question' }, open, foreign(questions.id[at], 'ex-id'));
      const line = make('tr', { class: isOpen ? 'ex-row ex-is-open' : 'ex-row', role: 'row', 'data-index': at }, head, cells);
      if (!isOpen) return [line];
      const close = () => toggle(at);
      const escape = (event) => (event.key === 'Escape' ? close() : null);
      const panel = make('td', { role: 'cell', colspan: columns.length }, detail(summary, questionAt, view.strategy, at, close));
      return [line, make('tr', { class: 'ex-detail-row', role: 'row', keydown: escape }, panel)];
    };

    /** Say how the questions are sorted, and how many changed since the previous run. */
    const orderText = (key, descending) => {
      const by = 'Sorted by ' + columns.find((column) => column.key === key).label + (descending ? ', highest first.' : ', lowest first.');
      const changed = questions.change[view.strategy].filter(isNumber);
      if (changed.length === 0) return by + ' No previous run to compare with.';
      const [fell, rose] = [changed.filter((x) => x < 0).length, changed.filter((x) => x > 0).length];
      return by + ' Since the previous run ' + fell + ' questions fell, ' + rose + ' rose.';
    };

    /** Whether a question passes the filters. */
    const passes = (at) => {
      const s = view.strategy;
      const isMissed = isNumber(questions.value[s][at]) && !(isNumber(questions.first[s][at]) && questions.first[s][at] <= CUTOFF);
      return searched[at].includes(view.q.trim().toLowerCase()) && (view.status === '' || questions.status[s][at] === view.status) && (!view.missed || isMissed);
    };

    /** Filter, sort and draw one page. An open question stays open if it is on the page; `find` turns to its page. */
    const draw = (find = false) => {
      const { key, descending } = ordering();
      const places = questions.id.map((_, at) => at).filter(passes);
      shown = sort(places, summary, view.strategy, columns.find((column) => column.key === key), descending);
      if (find && shown.includes(view.open)) view.page = Math.floor(shown.indexOf(view.open) / PAGE_SIZE) + 1;
      view.page = Math.min(view.page, pages());
      const from = (view.page - 1) * PAGE_SIZE;
      const listed = shown.slice(from, from + PAGE_SIZE);
      if (!listed.includes(view.open)) view.open = null;
      columns.forEach((column, n) => {
        if (column.key === key) heads[n].setAttribute('aria-sort', descending ? 'descending' : 'ascending');
        else heads[n].removeAttribute('aria-sort');
      });
      order.textContent = orderText(key, descending);
      const nothing = make('tr', { role: 'row' }, make('td', { role: 'cell', colspan: columns.length }, quiet('No question fits these filters.')));
      body.replaceChildren(...(listed.length > 0 ? listed.flatMap(row) : [nothing]));
      page.textContent = 'Page ' + view.page + ' of ' + pages();
      previous.setAttribute('aria-disabled', String(view.page <= 1));
      next.setAttribute('aria-disabled', String(view.page >= pages()));
      const all = ' of ' + shown.length + (shown.length === summary.n_questions ? '' : ' (' + summary.n_questions + ' in all)');
      count.textContent = shown.length === 0 ? 'No question shown' + all : 'Questions ' + (from + 1) + '–' + (from + listed.length) + all;
      const hash = written(summary, view);
      if (location.hash !== hash && (hash !== PREFIX || isOurs(location.hash))) history.replaceState(history.state, '', hash);
    };

    /** Show the view of the address. An address of another part of the page leaves the view as it is. */
    const visit = () => {
      view = isOurs(location.hash) ? read(summary, columns, location.hash) : view;
      search.value = view.q;
      strategy.selectedIndex = view.strategy;
      status.value = view.status;
      missed.checked = view.missed;
      draw(true);
      if (isOurs(location.hash)) (view.open === null ? root : lineOf(view.open)).scrollIntoView({ block: 'start' });
    };
    window.addEventListener('hashchange', () => {
      if (isOurs(location.hash) && location.hash !== written(summary, view)) visit();
    });
    visit();
  };

  // ---- Start

  const start = async (root) => {
    root.replaceChildren(make('p', { class: 'ex-quiet', role: 'status' }, 'Loading the questions…'));
    try {
      const reading = reader(root);
      const summary = await reading('summary');
      check(summary);
      explore(root, summary, questionsOf(reading, summary.per_part));
      root.dataset.state = 'ready';
    } catch (error) {
      root.replaceChildren(problem(error));
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
