/*
 * The buttons "CSV" and "LaTeX" of the report's tables: each saves the text that the page carries for it.
 *
 * Belongs here: downloads. The texts stand in the one block #bundle-tables, base64 of the gzip of {name: {"csv": text, "tex": text}}.
 */
(() => {
  'use strict';

  const TYPES = new Map([
    ['csv', 'text/csv;charset=utf-8'],
    ['tex', 'application/x-tex;charset=utf-8'],
  ]);
  const KEPT_MS = 60000;
  let reading = null;

  /** All tables, unpacked once. */
  const tables = () => {
    reading ??= (async () => {
      if (typeof DecompressionStream !== 'function') throw new Error('this browser is too old to unpack the tables (it lacks DecompressionStream)');
      const block = document.getElementById('bundle-tables');
      if (block === null) throw new Error('this page carries no tables');
      const binary = atob(block.textContent);
      const packed = new Uint8Array(binary.length);
      for (let at = 0; at < binary.length; at += 1) packed[at] = binary.charCodeAt(at);
      return new Map(Object.entries(JSON.parse(await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'))).text())));
    })();
    return reading;
  };

  const tell = (button, text) => {
    let message = button.parentElement.querySelector('.download-message');
    if (message === null) {
      message = document.createElement('span');
      message.className = 'download-message';
      message.setAttribute('role', 'status');
      button.parentElement.append(message);
    }
    message.textContent = text;
  };

  const save = async (button) => {
    const { name, format } = button.dataset;
    const file = name.replace(/[^A-Za-z0-9_.-]/g, '_') + '.' + format;
    try {
      const text = (await tables()).get(name)?.[format];
      if (typeof text !== 'string' || !TYPES.has(format)) throw new Error('this page does not carry that table');
      const address = URL.createObjectURL(new Blob([text], { type: TYPES.get(format) }));
      const link = document.createElement('a');
      link.href = address;
      link.download = file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
      tell(button, 'Saved as ' + file);
    } catch (error) {
      tell(button, 'Not saved: ' + error.message + '.');
    }
  };

  // without a script they would do nothing, so they are hidden until there is one
  for (const row of document.querySelectorAll('.exports')) row.hidden = false;

  document.addEventListener('click', (event) => {
    const button = event.target instanceof Element ? event.target.closest('button[data-download]') : null;
    if (button !== null) void save(button);
  });
})();
