// Asks the search of the site, which is Sphinx's own, without a browser.
//
//   search.mjs FOLDER   reads [[page, words], ...] as JSON; prints a line for each that the search does not answer with
//                       this page among the first three, or that it answers with an internal page before another
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createContext, runInContext } from 'node:vm';

const folder = process.argv[2];
const site = createContext({
  document: { getElementById: () => null },
  SPHINX_HIGHLIGHT_ENABLED: false,
  _: (text) => text,
  _ready: () => undefined,
});
site.window = site;
for (const file of ['_static/language_data.js', '_static/searchtools.js', 'searchindex.js']) {
  runInContext(readFileSync(join(folder, file), 'utf8'), site, { filename: file });
}
const found = runInContext(
  '(words) => Search._performSearch(...Search._parseQuery(words)).map((result) => result[5]).reverse()',
  site,
);
for (const [page, words] of JSON.parse(readFileSync(0, 'utf8'))) {
  const pages = [...new Set(found(words))];
  const first = pages.slice(0, 3);
  if (!first.includes(page)) console.log(`${page}: not among the first three for: ${words}: ${first.join(' ')}`);
  const isInternal = pages.map((name) => name.startsWith('docs/internals/'));
  if (isInternal.includes(true) && isInternal.lastIndexOf(false) > isInternal.indexOf(true)) {
    console.log(`${page}: internals before others for: ${words}`);
  }
}
