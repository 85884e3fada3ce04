// How the search orders its results: the guide and the operations before the rest, and the internals last.
const PLACES = [
  [/^docs\/internals\//, -1000],
  [/^(index$|docs\/(guide|operations)\/)/, 2],
];
// Sphinx takes this for its own; the numbers are its own, too.
window.Scorer = {
  score: ([name, , , , score]) => PLACES.reduce((sum, [place, more]) => (place.test(name) ? sum + more : sum), score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
