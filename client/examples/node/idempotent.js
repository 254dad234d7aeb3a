// Makes a handler of Express, or of node:http, idempotent.
//
//   const once = new Idempotent(new Coordinator('127.0.0.1:50051', 'proto'),
//     { scope: 'payments', policy: 'payment' });
//   app.use(express.raw({ type: () => true }));   // the body as it came
//   app.post('/payments', once.wrap(async (req, res) => ...));
//
// The handler finds its Execution in req.execution. It throws NothingHappened
// when it is certain to have done nothing; whatever else it throws leaves the
// outcome unknown, and the next attempt is told.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { millis } from './coordinator.js';
import { Execution, NothingHappened } from './execution.js';
import { requestHash } from './request_hash.js';
import { parseKey, problem, replayed, run, send, toMessage, unacceptable } from './web.js';

const PATIENCE_MS = 3000; // that a user waits for the coordinator
const LEASES_MAX = 10; // a handler that hangs does not hold its key for ever

export class Idempotent {
  #coordinator;
  #terms;

  // `terms` are fields of a ClaimRequest: scope, policy, lease.
  constructor(coordinator, terms) {
    this.#coordinator = coordinator;
    this.#terms = terms;
  }

  wrap(handler) {
    return async (req, res) => send(res, await this.#answer(handler, req, res));
  }

  async #answer(handler, req, res) {
    const values = req.headersDistinct['idempotency-key'];
    const key = parseKey(values);
    if (!key) return problem(400, values?.[0] ? 'key-malformed' : 'key-missing');
    // One token for this attempt, the same on every call and every retry: the
    // coordinator knows the sender of a call whose reply was lost.
    const operation = { scope: this.#terms.scope, key, claimToken: randomUUID() };
    const claim = {
      ...this.#terms, ...operation,
      // Of what the user sent, before anything parses it.
      requestHash: requestHash(req.method, req.originalUrl ?? req.url,
        req.headers['content-type'] ?? '', req.body ?? ''),
    };
    const sentAt = Date.now();
    let reply;
    try {
      reply = await this.#coordinator.call('claim', claim, PATIENCE_MS);
    } catch (failure) {
      if (failure.invalid) return unacceptable(failure);
      // It may have been granted all the same, and nothing was done.
      this.#release(operation, 'NOT_EXECUTED', PATIENCE_MS);
      return problem(503, 'unavailable', { failure });
    }
    switch (reply.outcome) {
      case 'claimed':
        req.execution = new Execution(reply.claimed, sentAt);
        return this.#execute(handler, req, res, claim, operation);
      case 'replay':
        return replayed(reply.replay.response);
      case 'inProgress':
        return problem(409, 'in-progress', { retryAfterMs: millis(reply.inProgress.retryAfter) });
      case 'mismatch':
        return problem(422, 'key-reused');
      case 'inDoubt': // somebody has to ask the payment channel first
        return problem(409, 'in-doubt');
      default: // A newer server's, which this program does not know: never execute.
        this.#release(operation, 'NOT_EXECUTED', PATIENCE_MS);
        return problem(503, 'unavailable');
    }
  }

  async #execute(handler, req, res, claim, operation) {
    const { execution } = req;
    this.#renew(claim, execution);
    let response;
    try {
      response = await run(handler, req, res);
    } catch (error) {
      const nothing = error instanceof NothingHappened;
      const known = nothing ? 'NOT_EXECUTED' : 'OUTCOME_UNKNOWN'; // Money may have moved.
      await this.#patiently(this.#release(operation, known, execution.leaseMs));
      return nothing ? problem(503, 'nothing-happened') : problem(500, 'outcome-unknown');
    } finally {
      execution.end();
    }
    // Not known in time: the user need not wait for it.
    const settled = this.#finalize(operation, execution, response);
    return await this.#patiently(settled) === 'refused' ? this.#winner(claim) : response;
  }

  async #renew(claim, execution) {
    const renewal = { ...claim, renewFencingToken: execution.fencingToken }; // never acquires
    const third = execution.leaseMs / 3;
    for (let i = 0; i < 3 * LEASES_MAX && !execution.signal.aborted; i += 1) {
      await sleep(third, null, { signal: execution.done.signal }).catch(() => {});
      if (execution.done.signal.aborted) return;
      const sentAt = Date.now();
      await this.#coordinator.call('claim', renewal, third).then(
        ({ claimed }) => claimed && execution.extend(claimed, sentAt),
        (failure) => failure.refused && execution.lose(),
      );
    }
  }

  // Goes on for a lease: what was done must become known.
  async #finalize(operation, execution, response) {
    const request = { ...operation, response: toMessage(response) };
    try {
      return await this.#coordinator.settle('finalize', request, execution.leaseMs, PATIENCE_MS);
    } catch (failure) {
      if (failure.refused) return 'refused';
      return this.#release(operation, 'OUTCOME_UNKNOWN', PATIENCE_MS);
    }
  }

  // What everybody else is told counts, never a response that was refused.
  async #winner({ scope, key, requestHash: hash }) {
    const request = { scope, key };
    const { record } = await this.#coordinator.call('lookup', request, PATIENCE_MS)
      .catch(() => ({}));
    const counts = record?.state === 'STATE_FINALIZED' && hash.equals(record.requestHash);
    return counts ? replayed(record.response) : problem(409, 'superseded');
  }

  #release(operation, disposition, longestMs) {
    const request = { ...operation, disposition: `DISPOSITION_${disposition}` };
    return this.#coordinator.settle('release', request, longestMs, PATIENCE_MS).catch(() => {});
  }

  #patiently(promise) {
    return Promise.race([promise, sleep(PATIENCE_MS)]);
  }
}
