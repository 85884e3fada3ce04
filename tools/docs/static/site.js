// What scrolls sideways is reached by the keyboard: blocks of code and tables that are wider than their place.
const reach = () => {
  for (const node of document.querySelectorAll('article pre, .table-wrapper')) {
    if (node.scrollWidth > node.clientWidth) node.tabIndex = 0;
    else node.removeAttribute('tabindex');
  }
};
addEventListener('load', reach);
addEventListener('resize', reach);

// Blocks that say the same in several languages become tabs. Without this script they stand one after the other, each
// below the name of its language. What a reader chooses is chosen on all pages.
const CHOICE = 'redis-lock-language';

const sets = () => {
  const found = [];
  for (const name of document.querySelectorAll('article p')) {
    const block = name.nextElementSibling;
    if (!/^[A-Z][\w.]*:$/.test(name.textContent) || !block?.matches('[class^="highlight-"]')) continue;
    const set = found.at(-1);
    const one = { name, block, language: name.textContent.slice(0, -1) };
    if (set?.at(-1).block === name.previousElementSibling) set.push(one);
    else found.push([one]);
  }
  return found.filter((set) => set.length > 1);
};

const tabs = (all) => {
  const choose = (language) => {
    for (const set of all) {
      const chosen = set.find((one) => one.language === language) ?? set[0];
      for (const one of set) {
        one.block.hidden = one !== chosen;
        one.tab.ariaSelected = one === chosen;
        one.tab.tabIndex = one === chosen ? 0 : -1;
      }
    }
    reach();
  };
  const remember = (one) => {
    const { top } = one.tab.getBoundingClientRect();
    choose(one.language);
    // Sets above change their height, too: what was pressed stays where it is.
    scrollBy({ top: one.tab.getBoundingClientRect().top - top, behavior: 'instant' });
    one.tab.focus({ preventScroll: true });
    localStorage.setItem(CHOICE, one.language);
  };
  all.forEach((set, at) => {
    const list = document.createElement('div');
    list.className = 'languages';
    list.role = 'tablist';
    list.ariaLabel = 'Language';
    set[0].name.before(list);
    set.forEach((one, place) => {
      one.tab = document.createElement('button');
      Object.assign(one.tab, { role: 'tab', id: `language-${at}-${place}`, textContent: one.language });
      Object.assign(one.block, { role: 'tabpanel', id: `block-${at}-${place}` });
      one.tab.setAttribute('aria-controls', one.block.id);
      one.block.setAttribute('aria-labelledby', one.tab.id);
      one.tab.addEventListener('click', () => remember(one));
      one.tab.addEventListener('keydown', ({ key }) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
        if (step) remember(set.at((place + step) % set.length));
      });
      list.append(one.tab);
      one.name.remove();
    });
  });
  choose(localStorage.getItem(CHOICE));
};
addEventListener('DOMContentLoaded', () => tabs(sets()));
