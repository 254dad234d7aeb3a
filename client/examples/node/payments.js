// A payment service: POST /payments, once for each Idempotency-Key.
//
//   npm install && cp -R ../../../proto .
//   node payments.js --listen 127.0.0.1:8080 --coordinator 127.0.0.1:50051
//
// The wallet is played, so that a test can say what it does: header X-Wallet.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import express from 'express';

import { Coordinator, duration } from './coordinator.js';
import { NothingHappened } from './execution.js';
import { Idempotent } from './idempotent.js';
import { checkVectors } from './request_hash.js';

// The other side. `order` is what it is to do: slow-MS, throw, nothing-happened,
// decline-402, error-500, long-BYTES, receipts-N; empty: charge.
class Wallet {
  #asked = new Map();

  asked(account) {
    return this.#asked.get(account) ?? 0;
  }

  async charge(payment, execution, order) {
    this.#asked.set(payment.account, this.asked(payment.account) + 1);
    const [what, number] = order.split('-');
    if (what === 'nothing') throw new NothingHappened('the wallet refused to begin');
    if (what === 'throw') throw new Error('the wallet hung up');
    if (what === 'slow') await sleep(Number(number));
    execution.signal.throwIfAborted(); // Asked before what cannot be undone.
    if (['decline', 'error'].includes(what)) return [Number(number), { error: what }];
    const answer = { ...payment, payment: randomUUID(), wallet_key: execution.downstreamKey };
    if (what === 'receipts') answer.receipts = Number(number);
    if (what === 'long') answer.receipt = 'x'.repeat(Number(number));
    return [201, answer];
  }
}

const { values: flags } = parseArgs({
  options: {
    listen: { type: 'string', default: '127.0.0.1:8080' },
    coordinator: { type: 'string', default: '127.0.0.1:50051' },
    lease_ms: { type: 'string' }, // default: the policy's
    check_vectors: { type: 'string' }, // a file; and end
  },
});
if (flags.check_vectors) {
  console.log(checkVectors(flags.check_vectors), 'vectors');
  process.exit();
}

const wallet = new Wallet();
const protos = fileURLToPath(new URL('proto', import.meta.url));
const once = new Idempotent(new Coordinator(flags.coordinator, protos), {
  scope: 'payments',
  policy: 'payment',
  lease: flags.lease_ms && duration(Number(flags.lease_ms)),
});
const app = express();
app.disable('x-powered-by');
app.use(express.raw({ type: () => true, limit: '1mb' })); // the body as it came
app.get('/payments', (req, res) => res.json({ asked: wallet.asked(req.query.account) }));
app.post('/payments', once.wrap(async (req, res) => {
  const [status, { receipts = 2, ...answer }] = await wallet.charge(
    JSON.parse(req.body), req.execution, req.get('X-Wallet') ?? '');
  // Some of one name, to be replayed as they are.
  res.set('X-Receipt', Array.from({ length: receipts }, (_, n) => String(n)));
  res.status(status).json(answer);
}));
const [host, port] = flags.listen.split(':');
app.listen(Number(port), host);
