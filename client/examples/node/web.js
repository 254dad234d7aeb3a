// The web's side of the recipe: keys, problems, responses.

// What a message of 4 MiB takes together with its headers.
const BODY_MAX = 3 * 1024 * 1024;
// Of one connection, not of the operation: they are not recorded.
const HOP_BY_HOP = new Set(['connection', 'content-length', 'date', 'keep-alive', 'server',
  'transfer-encoding']);
// A string of RFC 8941, or a bare token as most clients send it.
const QUOTED = /^"((?:[ !#-[\]-~]|\\["\\])+)"$/;
const BARE = /^[!#-+\-.-:<-~]+$/;

// The key in an Idempotency-Key header; of a repeated one there is none.
export function parseKey(values) {
  if (values?.length !== 1) return undefined;
  const quoted = QUOTED.exec(values[0].trim());
  if (quoted) return quoted[1].replace(/\\(.)/g, '$1');
  return BARE.exec(values[0].trim())?.[0];
}

// An answer of RFC 9457. `failure` is a CallFailed.
export function problem(status, type, { failure, retryAfterMs = failure?.retryAfterMs } = {}) {
  const body = {
    type: `urn:idempotency:${type}`, title: type.replaceAll('-', ' '), status,
    reason: failure?.reason || undefined, field: failure?.field || undefined,
  };
  const headers = [['Content-Type', 'application/problem+json']];
  if (retryAfterMs > 0) headers.push(['Retry-After', String(Math.ceil(retryAfterMs / 1000))]);
  return { status, headers, body: Buffer.from(JSON.stringify(body)) };
}

// The user's fault, or else the program's own.
export function unacceptable(failure) {
  return failure.field === 'key' ? problem(400, 'key-malformed', { failure })
    : problem(500, 'misconfigured', { failure });
}

// What was recorded, marked as such.
export function replayed(recorded) {
  const status = recorded.statusCode;
  const bodiless = [204, 205, 304].includes(status);
  if ((recorded.bodyOmitted && !bodiless) || status < 200 || status > 599) {
    return problem(410, 'response-not-kept');
  }
  const headers = recorded.headers.map(({ name, value }) => [name, value.toString('latin1')]);
  headers.push(['Idempotent-Replayed', 'true']);
  if (recorded.headersOmitted) headers.push(['Idempotent-Headers-Omitted', 'true']);
  return { status, headers, body: recorded.body };
}

// The response as it is recorded. A body too long for a message is left out:
// what was done must not be done again because its answer was long.
export function toMessage({ status, headers, body }) {
  const bodyOmitted = body.length > BODY_MAX;
  return {
    statusCode: status,
    headers: headers.filter(([name]) => !HOP_BY_HOP.has(name.toLowerCase()))
      .map(([name, value]) => ({ name, value: Buffer.from(value, 'latin1') })),
    body: bodyOmitted ? Buffer.alloc(0) : body,
    bodyOmitted,
  };
}

// The handler's whole response. Rejects when the handler throws.
export async function run(handler, req, res) {
  const { write, end, writeHead } = res;
  const pieces = [];
  const keep = (piece, encoding) => {
    if (piece && typeof piece !== 'function') {
      pieces.push(Buffer.from(piece, typeof encoding === 'string' ? encoding : undefined));
    }
    return true;
  };
  try {
    await new Promise((resolve, reject) => {
      res.writeHead = (status, ...headers) => {
        res.statusCode = status;
        for (const [name, value] of Object.entries(headers.at(-1) ?? {})) {
          res.setHeader(name, value);
        }
        return res;
      };
      res.write = keep;
      res.end = (piece, encoding) => {
        keep(piece, encoding);
        resolve();
        return res;
      };
      Promise.resolve().then(() => handler(req, res)).catch(reject);
    });
  } finally {
    Object.assign(res, { write, end, writeHead });
  }
  const headers = res.getRawHeaderNames().flatMap((name) =>
    [res.getHeader(name)].flat().map((value) => [name, String(value)]));
  return { status: res.statusCode, headers, body: Buffer.concat(pieces) };
}

export function send(res, { status, headers, body }) {
  for (const name of res.getHeaderNames()) res.removeHeader(name);
  for (const [name, value] of headers) res.appendHeader(name, value);
  res.setHeader('Content-Length', body.length);
  res.writeHead(status);
  res.end(body);
}
