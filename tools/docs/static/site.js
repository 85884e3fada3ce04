// What scrolls sideways is reached by the keyboard: blocks of code and tables that are wider than their place.
const reach = () => {
  for (const node of document.querySelectorAll('article pre, .table-wrapper')) {
    if (node.scrollWidth > node.clientWidth) node.tabIndex = 0;
    else node.removeAttribute('tabindex');
  }
};
addEventListener('load', reach);
addEventListener('resize', reach);
