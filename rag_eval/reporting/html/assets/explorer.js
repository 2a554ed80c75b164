/*
 * The per-question explorer of the report and of `rag-eval view`: a table of questions to sort, filter and page through, and what lies behind each.
 *
 * Belongs here: everything the explorer does in a browser. Its data are the explorer's bundle (rag_eval.evaluation.explorer_steps): embedded in the
 * page as base64 of gzip, or fetched from the viewer. Every text of it is data: it becomes text nodes and attribute values, never markup, and a link
 * only where the bundle gives an address with http or https. Sorting and filtering work on an index of the questions; only one page is in the document.
 */
(() => {
  'use strict';

  const SIZES = [10, 20, 50, 100, 200];
  const DEFAULT_SIZE = 10;
  const MAX_NOTE = 500;
  const CUTOFF = 10; // of R@10, and of the hits that are counted; the target of the miss rate has a K of its own
  const TAGS_IN_ROW = 4;
  const NOWHERE = 1e9; // sorts where no gold was found behind every rank
  const PREFIX = '#explorer';
  const NO_ANSWER = '-';
  const ALL = '*';
  const PER_STRATEGY = ['value', 'change', 'first', 'hits', 'runs', 'miss', 'status', 'state', 'lost'];
  const FLAGS = ['missed', 'changed', 'wordings', 'strategies'];

  const STATUSES = new Map([
    ['absent', 'nothing is stated'],
    ['uncalibrated', 'the raw heuristic: ranks questions, says nothing about how often'],
    ['prior', 'from other collections; not checked against outcomes of this one'],
    ['provisional', 'calibrated on few outcomes of this strategy'],
    ['measured', 'calibrated and checked on outcomes of this strategy'],
    ['stale', 'what was calibrated no longer holds: another index or configuration, or age; where a prior is named, the number is from other collections'],
  ]);
  const STATES = new Map([
    ['convergent', 'every wording and seed brings the same evidence'],
    ['divergent', 'the wordings bring different evidence'],
    ['recursive', 'the same wording finds or misses depending on the seed'],
    ['chaotic', 'wordings and seeds have little in common'],
    ['undefined', 'only one run: nothing to compare'],
  ]);
  const OUTCOMES = new Map([
    ['answered', 'answered'],
    ['not_found', 'not found'],
    ['insufficient_evidence', 'insufficient evidence'],
    ['contract_error_reply', 'contract error'],
    ['failed', 'failed'],
  ]);
  const CODES = new Map([
    ['ok', 'every rule of the citation payload holds'],
    ['empty_citations', 'the answer cites nothing'],
    ['bad_offsets', 'the offsets are no span of the source'],
    ['mixed_units', 'offsets in another unit than the rest of the run'],
    ['cross_section_reuse', 'one segment of the answer cites two sections'],
    ['missing_score', 'the retriever’s score is missing'],
    ['trace_incomplete', 'the rank is missing'],
    ['mismatch_index_hash', 'made from another index than this run’s'],
    ['analyzer_mismatch', 'made with another analyzer than the index'],
    ['rev_mismatch', 'made from another revision of the source'],
    ['source_url_mismatch', 'names another address than its document'],
    ['embed_model_mismatch', 'names another embedding model than the live index'],
    ['tokens_mismatch', 'states another number of tokens than its snippet has'],
    ['bad_segment', 'names no part of the answer'],
    ['unknown_snippet', 'points to nothing that was retrieved (fabricated)'],
    ['quote_mismatch', 'the source does not say what is quoted'],
    ['explained_before_cited', 'the answer explains before it cites'],
  ]);
  const LOST = new Map([
    ['retrieval', 'no list of the strategy had the gold'],
    ['fusion', 'a list had the gold among the first ten, and fusion moved it down'],
    ['rerank', 'the rerank step moved the gold out of the first ten'],
    ['cutoff', 'the gold was ranked, but never among the first ten'],
  ]);
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
    const inflate = async (block, name) => {
      if (typeof DecompressionStream !== 'function') throw new Told('This browser is too old to unpack the explorer’s data (it lacks DecompressionStream). Firefox 113, Chrome 111, Safari 16.4 and later can.');
      let packed;
      try {
        packed = bytesOf(block.textContent);
      } catch {
        throw new Told('The part “' + name + '” of this file is damaged: it is no base64. Write the report again with rag-eval run.');
      }
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
      let text;
      try {
        text = await new Response(stream).text();
      } catch {
        throw new Told('The part “' + name + '” of this file is damaged: it cannot be unpacked. Write the report again with rag-eval run.');
      }
      return text;
    };
    const fetched = async (name) => {
      let answer;
      try {
        answer = await fetch(root.dataset.base + 'explorer/' + name + '.json', { credentials: 'same-origin' });
      } catch {
        throw new Told('The server does not answer. Is rag-eval view still running?');
      }
      if (!answer.ok) throw new Told('The server has no part “' + name + '” of this run (status ' + answer.status + ').');
      try {
        return await answer.text();
      } catch {
        throw new Told('The part “' + name + '” of this run is damaged.');
      }
    };
    return async (name) => {
      const block = document.getElementById('bundle-' + name);
      if (root.dataset.source !== 'fetch' && block === null) throw new Told('This file lacks the part “' + name + '” of the explorer’s data.');
      const text = root.dataset.source === 'fetch' ? await fetched(name) : await inflate(block, name);
      try {
        return JSON.parse(text);
      } catch {
        throw new Told('The part “' + name + '” of the explorer’s data is damaged: it is no JSON.');
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

  /** Places of texts in the order of a dictionary, numbers in them by their value; NaN for null. */
  const places = (texts) => {
    const collator = new Intl.Collator('en', { numeric: true });
    const distinct = [...new Set(texts.filter((text) => text !== null))].sort(collator.compare);
    const place = new Map(distinct.map((text, at) => [text, at]));
    return Float64Array.from(texts, (text) => (text === null ? NaN : place.get(text)));
  };

  const columnsOf = (summary) => [
    { key: 'question', label: 'Question', about: 'Id and text in the original wording.', down: false },
    { key: 'tags', label: 'Tags', about: 'Tags of the gold set.', down: false },
    { key: 'answerable', label: 'Answerable', about: 'Whether the gold set says that the corpus holds an answer.', down: false },
    { key: 'value', label: summary.measure, about: summary.measure + ' at the ' + summary.level + ' level, mean over wordings and seeds.', down: false, numeric: true },
    { key: 'change', label: 'Change', about: summary.measure + ' minus the previous run’s.', down: false, numeric: true },
    { key: 'first', label: 'First gold', about: 'Rank of the first gold ' + (summary.level === 'span' ? 'passage' : summary.level) + ' in the original wording' + (summary.level === 'span' ? '' : ', each ' + summary.level + ' counted once') + '; “none” where it is not within the depth of the run.', down: true, numeric: true },
    { key: 'hits', label: 'Hits', about: 'How many of the retrievals (wordings and seeds) have gold in the top ' + CUTOFF + '.', down: false, numeric: true },
    { key: 'miss', label: 'Miss rate', about: 'Stated ' + summary.target + '@' + summary.k + ' of the original wording, with what that statement has earned.', down: true, numeric: true },
    { key: 'state', label: 'Lambda', about: 'How its wordings and seeds agree.', down: false },
    { key: 'outcome', label: 'Answer', about: 'How answering ended.', down: false },
    { key: 'citations', label: 'Citations', about: 'Correct citations of those the answer has.', down: false, numeric: true },
  ];

  /** What the table is sorted by: one number a question, NaN where there is none (always last). */
  const sortKeys = (summary, strategy, column) => {
    const { questions } = summary;
    const numbers = (values) => Float64Array.from(values, (value) => (isNumber(value) ? value : NaN));
    const keys = {
      question: () => places(questions.id),
      tags: () => places(questions.tags.map((tags) => (tags.length === 0 ? null : [...tags].sort().join('\n')))),
      answerable: () => numbers(questions.answerable.map((value) => (value === null ? null : Number(value)))),
      value: () => numbers(questions.value[strategy]),
      change: () => numbers(questions.change[strategy]),
      first: () => Float64Array.from(questions.first[strategy], (rank, at) => (isNumber(rank) ? rank : isNumber(questions.value[strategy][at]) ? NOWHERE : NaN)),
      hits: () => Float64Array.from(questions.hits[strategy], (hits, at) => (isNumber(hits) && questions.runs[strategy][at] > 0 ? hits / questions.runs[strategy][at] : NaN)),
      miss: () => numbers(questions.miss[strategy]),
      state: () => places(questions.state[strategy]),
      outcome: () => places(questions.outcome),
      citations: () => Float64Array.from(questions.cited, (cited, at) => (isNumber(cited) && cited > 0 ? (questions.correct[at] ?? 0) / cited : NaN)),
    };
    return keys[column]();
  };

  /** Question numbers by rising key, where it is the same by rising tie; what has no key comes last. */
  const ascending = (key, tie) => {
    const keyed = key.map((x) => (Number.isNaN(x) ? Infinity : x));
    return Array.from(keyed.keys()).sort((a, b) => (keyed[a] === keyed[b] ? tie[a] - tie[b] : keyed[a] - keyed[b]));
  };

  const ranksOf = (order) => {
    const ranks = new Float64Array(order.length);
    order.forEach((at, rank) => {
      ranks[at] = rank;
    });
    return ranks;
  };

  /** Question numbers in the order of a column; ties by the lowest measure, then the highest miss rate, then the gold set's order. */
  const sorter = (summary) => {
    const ties = new Map();
    const tieOf = (strategy) => {
      if (!ties.has(strategy)) {
        const given = Float64Array.from(summary.questions.id.keys());
        const byMiss = ascending(sortKeys(summary, strategy, 'miss').map((x) => -x), given);
        ties.set(strategy, ranksOf(ascending(sortKeys(summary, strategy, 'value'), ranksOf(byMiss))));
      }
      return ties.get(strategy);
    };
    return (strategy, column, descending) => {
      const key = sortKeys(summary, strategy, column);
      return ascending(descending ? key.map((x) => -x) : key, tieOf(strategy));
    };
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
    if (view.wordings) tests.push((at) => questions.hits[s][at] > 0 && questions.hits[s][at] < questions.runs[s][at]);
    if (view.strategies)
      tests.push((at) => {
        const judged = summary.strategies.map((_, other) => other).filter((other) => isNumber(questions.value[other][at]));
        const hits = judged.filter((other) => found(questions.first[other][at]));
        return hits.length > 0 && hits.length < judged.length;
      });
    return (at) => tests.every((test) => test(at));
  };

  // ---------------------------------------------------------------- what is behind a question

  const badge = (kind, text, about) => make('span', { class: 'ex-badge ' + kind, title: about }, text);

  const firstGold = (run) => (isNumber(run.first) ? '#' + run.first : isNumber(run.value) ? badge('ex-none', 'none', 'no gold within the depth of the run') : absent('not judged'));

  /** What the rank of the first gold counts, where the list of passages below counts otherwise or ends before it. */
  const rankSays = (summary, run) => {
    if (!isNumber(run.first) || run.units.length === 0 || run.hits[0] + 1 === run.first) return null;
    const counts = summary.level === 'span' ? '' : 'counts ' + summary.level + 's, the list below passages: ';
    const place = run.hits.length === 0 ? 'its passage comes after those shown' : 'its passage is number ' + (run.hits[0] + 1) + ' below';
    return make('span', { class: 'ex-quiet' }, ' (' + counts + place + ')');
  };

  /** The calibrator's id, a hash by its beginning. */
  const calibratorOf = (id) => make('span', { title: 'calibrator ' + id }, foreign(/^[0-9a-f]{32,}$/.test(id) ? id.slice(0, 8) + '…' : id, 'ex-code-text'));

  /** The stated miss rate in words: value, interval, what it has earned, what gave it. */
  const missRate = ([value, low, high, name, calibrator]) => {
    const range = isNumber(low) && isNumber(high) ? ' [' + fixed(low) + ', ' + fixed(high) + ']' : '';
    return make(
      'span',
      { class: 'ex-miss' },
      number(value, 'no miss rate is stated'),
      range,
      ' ',
      make('span', { class: 'ex-status', 'data-status': name, title: STATUSES.get(name) ?? null }, name),
      calibrator ? [' by ', calibratorOf(calibrator)] : null,
    );
  };

  const trust = (unit) => {
    const level = isNumber(unit.trust) ? 'trust ' + fixed(unit.trust, 2) : null;
    return make('span', { class: 'ex-trust', 'data-verdict': unit.verdict }, level === null ? unit.verdict : unit.verdict + ' · ' + level);
  };

  const snippet = (unit) => (unit.text === null ? make('p', { class: 'ex-left-out' }, 'The text is not in this file: rag-eval view shows it.') : make('p', { class: 'ex-snippet' }, marked(unit.text)));

  /** The address as text where no link carries it and the document's name does not say it already. */
  const address = (item) => (item.link || !item.source || item.source === item.doc || item.source.endsWith(':' + item.doc) ? null : foreign(item.source, 'ex-source'));

  /** Digits that give all scores of a list the same number of decimals and about four that say something. */
  const digitsOf = (scores) => {
    const largest = Math.max(0, ...scores.filter(isNumber).map(Math.abs));
    return largest >= 1000 ? 0 : largest >= 100 ? 1 : largest >= 10 ? 2 : largest >= 1 ? 3 : 4;
  };

  /** One ranked passage. */
  const ranked = (summary, run, units) => {
    const digits = digitsOf(run.scores);
    return (place, at) => {
      const unit = units[place];
      const hit = run.hits.includes(at);
      const { reasons } = unit;
      return make(
        'li',
        { class: hit ? 'ex-unit ex-hit' : 'ex-unit', value: at + 1 },
        make(
          'div',
          { class: 'ex-unit-head' },
          make('span', { class: 'ex-rank' }, make('span', { class: 'ex-hidden' }, 'Rank '), String(at + 1)),
          make(
            'span',
            { class: 'ex-where' },
            linked(unit.link, unit.doc, 'ex-doc'),
            sectionOf(unit),
            unit.title && unit.title !== unit.doc ? [' ', foreign(unit.title, 'ex-title')] : null,
          ),
          make('span', { class: 'ex-score' }, make('span', { class: 'ex-hidden' }, 'score '), number(run.scores[at] ?? null, 'no score', digits)),
        ),
        snippet(unit),
        make(
          'p',
          { class: 'ex-badges' },
          hit ? badge('ex-badge-hit', 'gold ' + summary.level, 'counted as relevant at the ' + summary.level + ' level') : null,
          trust(unit),
          reasons.length > 0 ? make('span', { class: 'ex-reasons' }, reasons.map((reason) => foreign(reason, 'ex-code-text'))) : null,
          address(unit),
        ),
      );
    };
  };

  const goldPart = (question) =>
    make(
      'section',
      { class: 'ex-part' },
      make('h4', {}, 'Gold'),
      question.gold.length === 0
        ? make('p', { class: 'ex-quiet' }, 'The gold set names no evidence for this question.')
        : make(
            'ul',
            { class: 'ex-gold' },
            question.gold.map((gold) =>
              make(
                'li',
                {},
                make('div', {}, linked(gold.link, gold.doc, 'ex-doc'), sectionOf(gold)),
                gold.quote ? make('blockquote', { class: 'ex-quote' }, foreign(gold.quote)) : null,
                address(gold),
              ),
            ),
          ),
    );

  const meaning = (code) => CODES.get(code) ?? (code.startsWith('missing_') ? 'the citation lacks ' + code.slice('missing_'.length) : 'a rule of the citation payload fails');

  const citation = (cited) => {
    const right = cited.correct === true ? ['ex-right', 'correct', 'the cited passage is gold'] : cited.correct === false ? ['ex-wrong', 'not correct', 'the cited passage is not gold'] : ['ex-open-verdict', 'not judged', 'there is nothing to judge it by'];
    const code = String(cited.code ?? '');
    return make(
      'li',
      {},
      make('div', {}, linked(cited.link, cited.doc, 'ex-doc'), sectionOf(cited)),
      cited.quote ? make('blockquote', { class: 'ex-quote' }, foreign(cited.quote)) : null,
      make(
        'p',
        { class: 'ex-badges' },
        make('span', { class: 'ex-badge ex-correct ' + right[0], title: right[2] }, right[1]),
        make('span', { class: 'ex-code', 'data-code': code, title: meaning(code) }, foreign(code, 'ex-code-text'), code === 'ok' ? make('span', { class: 'ex-hidden' }, ': ' + meaning(code)) : ': ' + meaning(code)),
        address(cited),
      ),
    );
  };

  const answerPart = (question) => {
    const { answer } = question;
    if (answer === null || answer === undefined) return make('section', { class: 'ex-part ex-answer' }, make('h4', {}, 'Answer'), make('p', { class: 'ex-quiet' }, 'This run has no answer to this question.'));
    const { outcome } = answer;
    return make(
      'section',
      { class: 'ex-part ex-answer' },
      make('h4', {}, 'Answer'),
      make(
        'p',
        { class: 'ex-facts' },
        make('span', { class: 'ex-outcome', 'data-outcome': outcome }, OUTCOMES.get(outcome) ?? foreign(outcome)),
        isNumber(answer.groundedness) ? [' · groundedness ', fixed(answer.groundedness)] : null,
        ' · from ',
        foreign(answer.strategy),
      ),
      answer.text ? make('p', { class: 'ex-answer-text' }, foreign(answer.text)) : null,
      answer.citations.length === 0 ? make('p', { class: 'ex-quiet' }, 'It cites nothing.') : make('ol', { class: 'ex-citations' }, answer.citations.map(citation)),
    );
  };

  // ---------------------------------------------------------------- what a reader says of a retrieval

  /** The form that records an outcome. `said` keeps what was recorded while the page is open. */
  const feedbackForm = (claim, said) => {
    const key = JSON.stringify(claim);
    const name = 'ex-say-' + claim.strategy_number;
    const told = make('p', { class: 'ex-told', role: 'status', 'aria-live': 'polite' }, said.get(key) ?? '');
    const counter = make('span', { class: 'ex-counter' }, '0 of ' + MAX_NOTE);
    const send = make('button', { type: 'submit', class: 'ex-send' }, 'Record');
    const note = make('textarea', { class: 'ex-note', id: name + '-note', rows: 2, maxlength: MAX_NOTE, 'aria-describedby': name + '-counter' });
    counter.id = name + '-counter';
    note.addEventListener('input', () => {
      counter.textContent = Array.from(note.value).length + ' of ' + MAX_NOTE;
    });
    const fields = make(
      'fieldset',
      {},
      make('legend', {}, 'What do you say of this retrieval?'),
      make('div', { class: 'ex-sayings' }, SAYINGS.map(([value, label]) => make('label', {}, make('input', { type: 'radio', name, value, required: true }), ' ', label))),
      make('label', { for: note.id, class: 'ex-note-label' }, 'Note (optional)'),
      note,
      make('div', { class: 'ex-send-row' }, send, counter),
    );
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
        const answer = await fetch('/feedback', {
          method: 'POST',
          credentials: 'same-origin',
          headers: { 'Content-Type': 'application/json', 'X-Rag-Eval-Token': document.querySelector('meta[name="rag-eval-token"]')?.content ?? '' },
          body: JSON.stringify({ ...named, feedback, note: note.value }),
        });
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
      const cell = (strategy, wording) => {
        const runs = runsOf(question, strategy, wording);
        const values = runs.map((run) => run.value).filter(isNumber);
        const mean = values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
        return make(
          'td',
          { role: 'cell', 'data-strategy': summary.strategies[strategy], class: strategy === view.strategy ? 'ex-chosen' : null },
          runs.length === 0 ? absent('not run') : [number(mean, 'not judged'), ' ', make('span', { class: 'ex-first' }, firstGold(runs[0]))],
          runs.length > 1 ? make('span', { class: 'ex-quiet' }, ' ' + runs.length + ' seeds') : null,
        );
      };
      return make(
        'div',
        { class: 'ex-wordings-scroll', role: 'region', tabindex: 0, 'aria-label': 'Wordings of this question' },
        make(
          'table',
          { id: 'ex-wordings-table', role: 'table' },
          make('caption', {}, 'Wordings: ' + summary.measure + ' and rank of the first gold'),
          make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, make('th', { scope: 'col', role: 'columnheader' }, 'Wording'), strategies.map((s) => make('th', { scope: 'col', role: 'columnheader', class: s === view.strategy ? 'ex-chosen' : null }, foreign(summary.strategies[s]))))),
          make(
            'tbody',
            { role: 'rowgroup' },
            question.wordings.map((wording, w) =>
              make(
                'tr',
                { role: 'row' },
                make(
                  'th',
                  { scope: 'row', role: 'rowheader' },
                  make('label', {}, make('input', { type: 'radio', name: 'ex-wording', value: w, change: () => pick(w) }), make('span', {}, foreign(wording.text), ' ', foreign(wording.id, 'ex-id'))),
                ),
                strategies.map((s) => cell(s, w)),
              ),
            ),
          ),
        ),
      );
    };

    const runArticle = (question, s, w, seed, changeSeed) => {
      const name = summary.strategies[s];
      const wording = question.wordings[w];
      const runs = runsOf(question, s, w);
      const run = runs.find((one) => one.seed === seed) ?? runs[0];
      const head = make('h4', {}, foreign(name));
      const article = make('article', { class: 'ex-run', 'data-strategy': name, 'data-wording': wording.id }, head);
      if (run === undefined) {
        article.append(make('p', { class: 'ex-quiet' }, 'This strategy was not run on this wording.'));
        return article;
      }
      const seeds = runs.length < 2 ? null : make('select', { class: 'ex-seed', 'aria-label': 'Seed', change: (event) => changeSeed(Number(event.target.value)) }, runs.map((one) => make('option', { value: one.seed, selected: one === run }, 'seed ' + one.seed)));
      article.append(
        make(
          'dl',
          { class: 'ex-facts' },
          make('div', {}, make('dt', {}, summary.measure), make('dd', {}, number(run.value, 'not judged'))),
          make('div', {}, make('dt', {}, 'First gold'), make('dd', {}, firstGold(run), rankSays(summary, run))),
          make('div', {}, make('dt', {}, 'Miss rate'), make('dd', {}, missRate(run.miss))),
          seeds === null ? null : make('div', {}, make('dt', {}, 'Seed'), make('dd', {}, seeds)),
        ),
        run.lost ? make('p', { class: 'ex-lost' }, foreign(run.lost)) : '',
        run.failed ? make('p', { class: 'ex-problem' }, 'The retrieval failed; it counts as a miss.') : '',
        run.units.length === 0 ? make('p', { class: 'ex-quiet' }, run.w > 0 && summary.cut?.[0] === 0 ? 'Its ranks are not in this file: rag-eval view shows them.' : 'Nothing was retrieved.') : make('ol', { class: 'ex-evidence', 'aria-label': 'Ranked evidence' }, run.units.map(ranked(summary, run, question.units))),
      );
      if (root.dataset.feedback === 'on' && root.dataset.source === 'fetch') {
        const claim = { run_id: context.run, query_id: id, paraphrase_id: wording.id, seed: run.seed, strategy: name, strategy_number: s };
        article.append(make('details', { class: 'ex-feedback-fold', open: said.has(JSON.stringify(claim)) }, make('summary', {}, 'Say what is wrong'), feedbackForm(claim, said)));
      }
      return article;
    };

    const show = (question) => {
      const runs = make('div', { class: 'ex-runs' });
      const shownWordings = question.wordings.length;
      const select = make('select', { id: 'ex-show' }, summary.strategies.map((name) => make('option', { value: name }, name)), summary.strategies.length > 1 ? make('option', { value: ALL }, 'all side by side') : null);
      let wording = Math.max(0, question.wordings.findIndex((one) => one.id === view.w));
      let seed = null;
      const draw = () => {
        const all = view.show === ALL;
        const named = summary.strategies.indexOf(view.show);
        const strategies = all ? summary.strategies.map((_, s) => s) : [named < 0 ? view.strategy : named];
        select.value = all ? ALL : summary.strategies[strategies[0]];
        link.setAttribute('href', chosen());
        const changeSeed = (value) => {
          seed = value;
          draw();
        };
        section.classList.toggle('ex-side', all);
        runs.replaceChildren(...strategies.map((s) => runArticle(question, s, wording, seed, changeSeed)));
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
        shownWordings === 0 ? make('p', { class: 'ex-quiet' }, 'No wordings.') : table,
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

  const fresh = (summary) => ({ q: '', tag: '', status: '', outcome: '', strategy: summary.primary ?? 0, missed: false, changed: false, wordings: false, strategies: false, sort: '', descending: false, page: 1, size: DEFAULT_SIZE, open: null, w: '', show: '' });

  const written = (summary, view) => {
    const parts = new URLSearchParams();
    for (const key of ['q', 'tag', 'status', 'outcome']) if (view[key] !== '') parts.set(key, view[key]);
    if (view.strategy !== summary.primary) parts.set('strategy', summary.strategies[view.strategy]);
    for (const key of FLAGS) if (view[key]) parts.set(key, '1');
    if (view.sort !== '') {
      parts.set('sort', view.sort);
      parts.set('dir', view.descending ? 'desc' : 'asc');
    }
    if (view.page !== 1) parts.set('page', String(view.page));
    if (view.size !== DEFAULT_SIZE) parts.set('size', String(view.size));
    if (view.open !== null) {
      parts.set('open', summary.questions.id[view.open]);
      if (view.w !== '') parts.set('w', view.w);
      if (view.show !== '') parts.set('show', view.show);
    }
    const text = parts.toString();
    return text === '' ? PREFIX : PREFIX + '?' + text;
  };

  /** What an address asks for; whatever it holds that is not known is left aside. */
  const read = (summary, columns, hash) => {
    const view = fresh(summary);
    const parts = new URLSearchParams(hash.slice(PREFIX.length + 1));
    view.q = parts.get('q') ?? '';
    const known = (key, names) => (names.includes(parts.get(key)) ? parts.get(key) : '');
    view.tag = known('tag', [...new Set(summary.questions.tags.flat())]);
    view.status = known('status', [...STATUSES.keys()]);
    view.outcome = known('outcome', [...OUTCOMES.keys(), NO_ANSWER]);
    if (summary.strategies.includes(parts.get('strategy'))) view.strategy = summary.strategies.indexOf(parts.get('strategy'));
    for (const key of FLAGS) view[key] = parts.get(key) === '1';
    view.sort = known('sort', columns.map((column) => column.key));
    view.descending = parts.get('dir') === 'desc';
    view.page = Math.max(1, Number.parseInt(parts.get('page') ?? '1', 10) || 1);
    if (SIZES.includes(Number(parts.get('size')))) view.size = Number(parts.get('size'));
    const open = parts.has('open') ? summary.questions.id.indexOf(parts.get('open')) : -1;
    view.open = open < 0 ? null : open;
    view.w = parts.get('w') ?? '';
    view.show = known('show', [...summary.strategies, ALL]);
    return view;
  };

  // ---------------------------------------------------------------- the table of questions

  const labelled = (label, control) => make('label', { class: 'ex-field', for: control.id }, make('span', {}, label), control);

  const explore = (root, summary, questionAt) => {
    const { questions } = summary;
    const columns = columnsOf(summary);
    const searched = questions.id.map((id, at) => (id + '\n' + questions.text[at]).toLowerCase());
    const sorted = sorter(summary);
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
    const tag = make('select', { id: 'ex-tag' });
    const status = make('select', { id: 'ex-status' });
    const outcome = make('select', { id: 'ex-outcome' });
    const flags = new Map(FLAGS.map((key) => [key, make('input', { type: 'checkbox', id: 'ex-' + key })]));
    const reset = make('button', { type: 'button', id: 'ex-reset' }, 'Clear filters');
    const sortBy = make('select', { id: 'ex-sort' });
    const direction = make('button', { type: 'button', id: 'ex-direction' }, 'Reverse order');
    const size = make('select', { id: 'ex-size' });
    const count = make('p', { id: 'ex-count', role: 'status', 'aria-live': 'polite' });
    const ordering = make('p', { id: 'ex-order' });
    const page = make('span', { id: 'ex-page' });
    const body = make('tbody', { role: 'rowgroup' });

    const tagged = new Map();
    for (const each of questions.tags.flat()) tagged.set(each, (tagged.get(each) ?? 0) + 1);
    choices(strategy, summary.strategies.map((name, s) => [name, s === summary.primary ? name + ' (primary)' : name]));
    choices(tag, [['', 'any'], ...[...tagged].map(([name, n]) => [name, name + ' (' + n + ')'])]);
    choices(status, [['', 'any'], ...[...STATUSES.keys()].map((name) => [name, name])]);
    choices(outcome, [['', 'any'], ...OUTCOMES, [NO_ANSWER, 'no answer']]);
    choices(sortBy, [['', 'worst first'], ...columns.map((column) => [column.key, column.label])]);
    choices(size, SIZES.map((n) => [n, n]));

    const heads = new Map(
      columns.map((column) => [column.key, make('th', { scope: 'col', role: 'columnheader', 'data-column': column.key, class: column.numeric ? 'ex-numeric' : null }, make('button', { type: 'button', title: column.about, click: () => sort(column) }, column.label))]),
    );
    const step = (id, label, text, move) => make('button', { type: 'button', id, 'aria-label': label, click: (event) => (event.currentTarget.getAttribute('aria-disabled') === 'true' ? null : turn(move())) }, text);
    const pages = () => Math.max(1, Math.ceil(shown.length / view.size));
    const first = step('ex-first', 'First page', '«', () => 1);
    const previous = step('ex-previous', 'Previous page', '‹', () => view.page - 1);
    const next = step('ex-next', 'Next page', '›', () => view.page + 1);
    const last = step('ex-last', 'Last page', '»', () => pages());
    const names = { missed: 'missed only', changed: 'changed only', wordings: 'wordings disagree', strategies: 'strategies disagree' };
    const meanings = {
      missed: 'no gold in the top ' + CUTOFF + ' of the original wording',
      changed: summary.measure + ' differs from the previous run',
      wordings: 'gold in the top ' + CUTOFF + ' of some wordings or seeds but not of all',
      strategies: 'some strategies have gold in the top ' + CUTOFF + ' of the original wording and others do not',
    };
    const filters = make(
      'form',
      { id: 'ex-filters', role: 'search', 'aria-label': 'Filter the questions', submit: (event) => event.preventDefault() },
      make('div', { class: 'ex-fields' }, labelled('Search', search), labelled('Strategy', strategy), labelled('Tag', tag), labelled('Status of the miss rate', status), labelled('Answer', outcome)),
      make('div', { class: 'ex-flags' }, [...flags].map(([key, box]) => make('label', { title: meanings[key] }, box, ' ', names[key])), reset),
      make('div', { class: 'ex-sorting' }, labelled('Sort by', sortBy), direction),
    );
    const table = make(
      'table',
      { id: 'ex-table', role: 'table' },
      make('caption', { class: 'ex-hidden' }, 'Questions of the gold set ', foreign(summary.gold_set), ' with figures of the chosen strategy'),
      make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, [...heads.values()])),
      body,
    );
    const region = make('div', { class: 'ex-scroll', role: 'region', tabindex: 0, 'aria-label': 'Table of questions' }, table);
    const pager = make('nav', { id: 'ex-pager', 'aria-label': 'Pages of questions' }, make('span', { class: 'ex-steps' }, first, previous, page, next, last), make('label', { class: 'ex-size-label', for: 'ex-size' }, make('span', {}, 'a page'), size));
    const help = make(
      'details',
      { class: 'ex-help' },
      make('summary', {}, 'What the columns and filters say'),
      make('dl', {}, columns.map((column) => make('div', {}, make('dt', {}, column.label), make('dd', {}, column.about))), make('div', {}, make('dt', {}, 'A dash'), make('dd', {}, 'Nothing to show: no tags; not judged, for want of gold; no figure of a previous run; no miss rate stated; states not measured; no answer, or one without citations.')), FLAGS.map((key) => make('div', {}, make('dt', {}, names[key]), make('dd', {}, meanings[key] + '.')))),
    );
    const { cut } = summary;
    const left = cut === undefined ? null : make('p', { class: 'ex-quiet' }, 'To keep this file small it holds the first ' + cut[0] + ' ranks of wordings beside the original one, and the texts of the first ' + cut[1] + ' ranks under the original one; rag-eval view shows all.');
    root.replaceChildren(...[filters, make('div', { class: 'ex-told-row' }, count, ordering), region, pager, left, help].filter((part) => part !== null));

    // -------- rows

    const cell = (column, ...children) => make('td', { role: 'cell', 'data-column': column.key, 'data-label': column.label, class: column.numeric ? 'ex-numeric' : null }, children);

    const cells = {
      tags: (at) => {
        const own = questions.tags[at];
        if (own.length === 0) return absent('no tags');
        return [own.slice(0, TAGS_IN_ROW).map((each) => foreign(each, 'ex-tag')), own.length > TAGS_IN_ROW ? make('span', { class: 'ex-quiet' }, '+' + (own.length - TAGS_IN_ROW)) : null];
      },
      answerable: (at) => (questions.answerable[at] === true ? 'yes' : questions.answerable[at] === false ? 'no' : absent('the gold set does not say')),
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
        return lost === null ? shown : [shown, make('span', { class: 'ex-quiet ex-lost-by', title: LOST.get(lost) ?? null }, lost)];
      },
      hits: (at, s) => (isNumber(questions.hits[s][at]) && questions.runs[s][at] > 0 ? questions.hits[s][at] + ' / ' + questions.runs[s][at] : absent('not judged')),
      miss: (at, s) => {
        const name = questions.status[s][at];
        return [make('span', { class: 'ex-figure' }, number(questions.miss[s][at], 'no miss rate is stated')), ' ', make('span', { class: 'ex-status', 'data-status': name, title: STATUSES.get(name) ?? null }, name)];
      },
      state: (at, s) => {
        const name = questions.state[s][at];
        return name ? make('span', { class: 'ex-state', title: STATES.get(name) ?? null }, name) : absent('not measured');
      },
      outcome: (at) => {
        const name = questions.outcome[at];
        return name ? make('span', { class: 'ex-outcome', 'data-outcome': name }, OUTCOMES.get(name) ?? foreign(name)) : absent('no answer');
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
      const name = summary.strategies[view.strategy];
      const change = questions.change[view.strategy];
      const compared = summary.previous === null || summary.previous === undefined ? ['No previous run to compare with', summary.previous_reason ? [': ', foreign(summary.previous_reason)] : null, '.'] : ['Compared with run ', foreign(summary.previous, 'ex-code-text'), ': ', plural(change.filter((x) => isNumber(x) && x < 0).length, 'question', 'questions') + ' fell, ' + change.filter((x) => x > 0).length + ' rose.', summary.previous_reason ? [' ', foreign(summary.previous_reason)] : null];
      const changes = summary.previous_changes ?? [];
      const caveat = summary.previous === null || changes.length === 0 ? [] : [{ true: ' Changed between the two: ', false: ' The two are not comparable: ' }[summary.previous_comparable] ?? ' Whether the two are comparable is not known: ', foreign(changes.join('; ')), summary.previous_comparable === false ? '. The questions and their gold are the same; what changed is part of these differences.' : '.'];
      const by =
        view.sort !== ''
          ? ['Sorted by ' + columns.find((column) => column.key === key).label + (descending ? ', highest first. ' : ', lowest first. ')]
          : key === 'change'
            ? ['Largest regressions of ', foreign(name), ' first. ']
            : ['Lowest ' + summary.measure + ' of ', foreign(name), ' first, ties by the highest miss rate. '];
      return [by, compared, caveat].flat(Infinity).filter((part) => part !== null);
    };

    const drawPage = () => {
      const from = (view.page - 1) * view.size;
      const rows = shown.slice(from, from + view.size);
      body.replaceChildren(...(rows.length > 0 ? rows.map(row) : [make('tr', { role: 'row' }, make('td', { role: 'cell', colspan: columns.length, class: 'ex-nothing' }, 'No question fits these filters.'))]));
      page.textContent = 'Page ' + view.page + ' of ' + pages();
      for (const button of [first, previous]) button.setAttribute('aria-disabled', String(view.page <= 1));
      for (const button of [next, last]) button.setAttribute('aria-disabled', String(view.page >= pages()));
      const all = shown.length === summary.n_questions ? '' : ' (' + summary.n_questions.toLocaleString('en') + ' in all)';
      count.textContent = shown.length === 0 ? 'No question shown' + all : 'Questions ' + (from + 1).toLocaleString('en') + '–' + (from + rows.length).toLocaleString('en') + ' of ' + shown.length.toLocaleString('en') + all;
    };

    /** Sort, filter and draw; an open question stays open where it is still on the page. */
    const draw = ({ find = false } = {}) => {
      const wanted = view.open;
      const kept = { w: view.w, show: view.show };
      const [key, descending] = chosenSort();
      const by = [view.strategy, key, descending].join(' ');
      if (by !== orderedBy) order = sorted(view.strategy, key, descending);
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
      tag.value = view.tag;
      status.value = view.status;
      outcome.value = view.outcome;
      for (const [key, box] of flags) box.checked = view[key];
      sortBy.value = view.sort;
      size.value = String(view.size);
    };

    const change = (values) => {
      Object.assign(view, values, { page: 1 });
      draw();
    };

    const sort = (column) => {
      const [key, descending] = chosenSort();
      change({ sort: column.key, descending: key === column.key ? !descending : column.down });
      sortBy.value = column.key;
    };

    const turn = (to) => {
      view.open = null;
      view.page = Math.min(Math.max(1, to), pages());
      draw();
      if (region.getBoundingClientRect().top < 0) region.scrollIntoView({ block: 'start' });
    };

    search.addEventListener('input', () => change({ q: search.value }));
    strategy.addEventListener('change', () => change({ strategy: strategy.selectedIndex, show: '' }));
    tag.addEventListener('change', () => change({ tag: tag.value }));
    status.addEventListener('change', () => change({ status: status.value }));
    outcome.addEventListener('change', () => change({ outcome: outcome.value }));
    for (const [key, box] of flags) box.addEventListener('change', () => change({ [key]: box.checked }));
    sortBy.addEventListener('change', () => change({ sort: sortBy.value, descending: columns.find((column) => column.key === sortBy.value)?.down ?? false }));
    direction.addEventListener('click', () => sort(columns.find((column) => column.key === chosenSort()[0])));
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
