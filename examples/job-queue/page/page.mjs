// Shows the state that app.py sends with each event. Keeps no state of its own but the time of the last event, so that
// the leases can be counted down in between. Buttons are made once, so that the keyboard's focus stays.

const byId = (id) => document.getElementById(id);
let state = null;
let since = 0;

// element('p', { className: 'x' }, 'text', child...)
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

const workerTag = (name, tag = 'span') => {
  const made = element(tag, { className: 'worker' }, name);
  const number = /^worker (\d+)$/.exec(name);
  // The golden angle: neighbours differ most.
  if (number) made.style.setProperty('--hue', String((Number(number[1]) * 137.5) % 360));
  return made;
};

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

const seconds = (ms) => `${(Math.max(0, ms) / 1000).toFixed(1)} s`;
const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');
const stateOf = (name) => state.workers.find((worker) => worker.name === name)?.state ?? 'gone';
const isOurs = (name) => /^worker \d+$/.test(name);

// --- locks ---

const cards = new Map();

const makeCard = (stock) => {
  const parts = {
    amount: element('span', { className: 'amount' }),
    holder: element('p', { className: 'holder' }),
    bar: element('progress', { max: 1, value: 0 }),
    lease: element('p', { className: 'lease' }),
    queueLabel: element('p', { className: 'label', id: `queue-${stock}` }),
    queue: element('ol', { className: 'queue' }),
  };
  parts.bar.setAttribute('aria-label', `Lease on ${stock}: what is left of it`);
  parts.queue.setAttribute('aria-labelledby', `queue-${stock}`);
  parts.card = element(
    'article',
    { className: 'card' },
    element('div', { className: 'head' }, element('h3', {}, stock), parts.amount),
    element('p', { className: 'label' }, 'Held by'),
    parts.holder,
    parts.bar,
    parts.lease,
    parts.queueLabel,
    parts.queue,
  );
  parts.card.dataset.stock = stock;
  byId('locks').append(parts.card);
  cards.set(stock, parts);
  return parts;
};

const showLock = (lock) => {
  const parts = cards.get(lock.stock) ?? makeCard(lock.stock);
  const same = lock.amount === lock.writes;
  const sum = `after ${lock.writes} writes: ${same ? 'no update lost' : 'an update is lost'}`;
  parts.amount.replaceChildren(element('strong', {}, String(lock.amount)), ` ${sum}`);
  parts.amount.classList.toggle('wrong', !same);
  if (lock.holder) {
    const fence = element('span', { className: 'fence' }, `fence ${lock.holder.fence}`);
    parts.holder.replaceChildren(workerTag(lock.holder.worker), fence);
  } else {
    parts.holder.replaceChildren('nobody');
  }
  setText(parts.queueLabel, `Waiting: ${lock.waiting || 'nobody'}`);
  const tags = lock.waiters.map((waiter) => workerTag(waiter.worker, 'li'));
  const names = (nodes) => [...nodes].map((node) => node.textContent).join();
  if (names(tags) !== names(parts.queue.children)) parts.queue.replaceChildren(...tags);
};

const showLeases = () => {
  for (const lock of state?.locks ?? []) {
    const { card, bar, lease } = cards.get(lock.stock);
    const left = lock.holder ? Math.max(0, lock.holder.ttl_ms - (performance.now() - since)) : 0;
    const how = lock.holder && isOurs(lock.holder.worker) ? stateOf(lock.holder.worker) : 'running';
    bar.max = state.lease_ms;
    bar.value = left;
    card.classList.toggle('bad', how !== 'running');
    let text = lock.holder ? `renewed in time: ${seconds(left)} left` : 'free';
    if (how === 'frozen') text = `frozen, so not renewed: the lease ends in ${seconds(left)}`;
    if (how === 'gone') text = `killed, so not renewed: the lease ends in ${seconds(left)}`;
    setText(lease, text);
  }
};

// --- workers ---

const rows = new Map();

const send = async (path) => {
  const reply = await fetch(path, { method: 'POST', headers: { 'X-Example': 'page' } });
  if (reply.status === 409) setText(byId('latest'), 'There are as many workers as this example starts.');
};

const makeRow = ({ number, name }) => {
  const button = (text, label) => {
    const made = element('button', { type: 'button' }, text);
    made.setAttribute('aria-label', label);
    return made;
  };
  const freeze = button('Freeze', `Freeze ${name}`);
  const kill = button('Kill', `Kill ${name}`);
  freeze.addEventListener('click', () => send(`workers/${number}/${freeze.dataset.action}`));
  kill.addEventListener('click', () => send(`workers/${number}/kill`));
  const doing = element('span', { className: 'doing' });
  const buttons = element('span', { className: 'buttons' }, freeze, kill);
  const row = element('li', {}, workerTag(name), doing, buttons);
  row.dataset.worker = name;
  byId('workers').append(row);
  const parts = { row, freeze, kill, doing, buttons };
  rows.set(number, parts);
  return parts;
};

const doingOf = (worker) => {
  const how = { frozen: 'frozen; ', gone: 'killed; ' }[worker.state] ?? '';
  if (worker.holds) return `${how}holds ${worker.holds}`;
  if (worker.waits) return `${how}waits for ${worker.waits}`;
  return how ? how.slice(0, -2) : 'between two jobs';
};

const showWorkers = (workers) => {
  for (const worker of workers) {
    const parts = rows.get(worker.number) ?? makeRow(worker);
    setText(parts.doing, doingOf(worker));
    parts.doing.classList.toggle('bad', worker.state !== 'running');
    parts.buttons.hidden = worker.state === 'gone';
    const frozen = worker.state === 'frozen';
    parts.freeze.dataset.action = frozen ? 'wake' : 'freeze';
    setText(parts.freeze, frozen ? 'Wake' : 'Freeze');
    parts.freeze.setAttribute('aria-label', `${frozen ? 'Wake' : 'Freeze'} ${worker.name}`);
  }
  const numbers = new Set(workers.map((worker) => worker.number));
  for (const [number, { row }] of rows) {
    if (numbers.has(number)) continue;
    row.remove();
    rows.delete(number);
  }
};

// --- tables ---

const shown = new Map();

// fill(id, rows, [text or node...] of a row, empty): only if something has changed.
const fill = (id, items, cellsOf, empty) => {
  const now = JSON.stringify(items);
  if (shown.get(id) === now) return;
  shown.set(id, now);
  const made = items.map((item) => {
    return element('tr', {}, ...cellsOf(item).map((cell) => element('td', {}, cell)));
  });
  if (!made.length) made.push(element('tr', {}, element('td', { className: 'none', colSpan: 5 }, empty)));
  byId(id).replaceChildren(...made);
};

const fence = (number) => element('span', { className: 'fence' }, String(number));

const showTables = () => {
  fill(
    'lost',
    state.lost,
    (row) => [clock(row.time_ms), workerTag(row.worker), row.stock, row.reason, seconds(row.held_ms)],
    'None yet: freeze a worker, or kill one.',
  );
  fill(
    'refused',
    state.refused,
    (write) => [
      clock(write.time * 1000),
      workerTag(write.worker),
      `${write.stock} = ${write.amount}`,
      element('span', { className: 'why' }, `${write.fence} is older than ${write.highest_fence}`),
    ],
    'None yet: freeze a worker that holds a lock.',
  );
  fill('waits', state.waits, (wait) => [workerTag(wait.worker), wait.stock, seconds(wait.waited_ms)], 'Nobody waits.');
  fill(
    'writes',
    state.writes,
    (write) => [
      clock(write.time * 1000),
      workerTag(write.worker),
      `${write.stock} = ${write.amount}`,
      fence(write.fence),
    ],
    'None yet.',
  );
  setText(byId('refused-count'), String(state.refused_count));
};

// --- the latest news, also for screen readers: what went wrong, and what came of it ---

const showLatest = () => {
  const lost = state.lost[0];
  const refused = state.refused[0];
  let text = 'All is well: each holder renews its lease until its job is done.';
  if (refused && (!lost || refused.time * 1000 > lost.time_ms)) {
    text = `${refused.worker} was late: the store refused its write to ${refused.stock}.`;
  } else if (lost) {
    text = `${lost.worker} lost the lock of ${lost.stock}: its lease ended, and the next in the queue got it.`;
  }
  setText(byId('latest'), text);
  byId('latest').classList.toggle('bad', Boolean(lost || refused));
};

const show = () => {
  setText(byId('connection'), state.error ?? '');
  if (!state.locks) return;
  setText(byId('freeze-time'), `${Math.round(state.lease_ms / 1000) + 2} seconds`);
  for (const lock of state.locks) showLock(lock);
  showLeases();
  showWorkers(state.workers);
  showTables();
  showLatest();
};

byId('add').addEventListener('click', () => send('workers'));
const events = new EventSource('events');
events.addEventListener('message', (event) => {
  state = JSON.parse(event.data);
  since = performance.now();
  if (Object.keys(state).length) show();
});
events.addEventListener('error', () => setText(byId('connection'), 'The example has ended, or does not answer.'));
setInterval(showLeases, 100);
