// The coordinator's calls: sent again where that may help, their errors read.

import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import protobuf from 'protobufjs';

const BACKOFF_FIRST_MS = 50;
const BACKOFF_MAX_MS = 2000;
const REFUSED = [grpc.status.FAILED_PRECONDITION, grpc.status.NOT_FOUND];

export const millis = ({ seconds, nanos }) => Number(seconds) * 1000 + nanos / 1e6;
export const duration = (ms) => ({ seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1e6 });

// A call that got no answer, with what the error's details say.
export class CallFailed extends Error {
  reason = '';
  field = '';
  retryAfterMs = 0;

  constructor(error, details) {
    super(error.message, { cause: error });
    this.code = error.code;
    [this.pushback] = error.metadata?.get('grpc-retry-pushback-ms') ?? [];
    const [packed] = error.metadata?.get('grpc-status-details-bin') ?? [];
    const status = packed && details.lookupType('google.rpc.Status').decode(packed);
    for (const { type_url: url, value } of status?.details ?? []) {
      const name = url.slice(url.lastIndexOf('/') + 1);
      const detail = details.lookupType(name).decode(value);
      if (name === 'google.rpc.ErrorInfo' && detail.domain === 'idempotency.v1') {
        this.reason = detail.reason;
      } else if (name === 'google.rpc.RetryInfo') {
        this.retryAfterMs = millis(detail.retryDelay);
      } else if (name === 'google.rpc.BadRequest') {
        this.field = detail.fieldViolations[0]?.field ?? '';
      }
    }
  }

  // The service, not a proxy, said that the record is another's.
  get refused() {
    return REFUSED.includes(this.code) && this.reason !== '';
  }

  get invalid() {
    return this.code === grpc.status.INVALID_ARGUMENT;
  }

  // Milliseconds until the call may be sent again; Infinity: it may not.
  waitMs(attempt) {
    if (this.code !== grpc.status.UNAVAILABLE) return Infinity;
    if (this.pushback !== undefined) {
      // Negative or malformed: the server forbids another try.
      return /^\d+$/.test(this.pushback) ? Number(this.pushback) : Infinity;
    }
    // All of it random: callers that failed together come back apart.
    const most = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** attempt);
    return this.retryAfterMs + Math.random() * most;
  }
}

// One for the process. `protos` is the folder with idempotency/ and google/.
export class Coordinator {
  constructor(target, protos) {
    const contract = protoLoader.loadSync('idempotency/v1/idempotency.proto', {
      includeDirs: [protos], defaults: true, enums: String, longs: String, oneofs: true,
    });
    const { IdempotencyService } = grpc.loadPackageDefinition(contract).idempotency.v1;
    this.details = new protobuf.Root();
    this.details.resolvePath = (_, path) =>
      (path.startsWith('google/rpc') ? `${protos}/${path}` : path);
    this.details.loadSync(['google/rpc/status.proto', 'google/rpc/error_details.proto']);
    // After an outage gRPC would wait up to two minutes before it connects.
    this.client = new IdempotencyService(target, grpc.credentials.createInsecure(),
      { 'grpc.max_reconnect_backoff_ms': 1000 });
  }

  // Sends the request, the same one each time, until it is answered. Throws
  // CallFailed when that cannot help or takes longer than `patienceMs`.
  async call(method, request, patienceMs) {
    const send = promisify(this.client[method]).bind(this.client);
    const deadline = Date.now() + patienceMs;
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await send(request, { deadline });
      } catch (error) {
        const failure = new CallFailed(error, this.details);
        const wait = failure.waitMs(attempt);
        if (Date.now() + wait >= deadline) throw failure;
        await sleep(wait);
      }
    }
  }

  // For what must become known, however long it takes: the call again and
  // again for `longestMs`, unless the service decides against it.
  async settle(method, request, longestMs, patienceMs) {
    const deadline = Date.now() + longestMs;
    for (;;) {
      try {
        return await this.call(method, request, patienceMs);
      } catch (failure) {
        if (failure.refused || failure.invalid || Date.now() > deadline) throw failure;
        await sleep(250 + Math.random() * 250);
      }
    }
  }
}
