// The request hash, the same in every language.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

const VERSION = 'idempotency.request.v1';

// SHA-256 over the version and the parts (strings or Buffers), each preceded by
// its length as 8 bytes, big-endian. Of an HTTP request: method, target, content
// type and body, as they came. Nothing is normalised.
export function requestHash(...parts) {
  const digest = createHash('sha256');
  for (const part of [VERSION, ...parts]) {
    const bytes = Buffer.from(part);
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(bytes.length));
    digest.update(length).update(bytes);
  }
  return digest.digest();
}

// How many examples of tests/vectors/request_hash.tsv hold; throws at the first
// that does not. A part is written in hex; `hex*n` is n times those bytes.
export function checkVectors(path) {
  const rows = readFileSync(path, 'utf8').trimEnd().split('\n').slice(1);
  for (const row of rows) {
    const [name, count, list, digest] = row.split('\t');
    const parts = (count === '0' ? [] : list.split(',')).map((part) => {
      const [hex, times = '1'] = part.split('*');
      return Buffer.from(hex.repeat(Number(times)), 'hex');
    });
    if (requestHash(...parts).toString('hex') !== digest) {
      throw new Error(`the request hash of '${name}' is another one`);
    }
  }
  return rows.length;
}
