// What a handler and its middleware tell each other.

import { millis } from './coordinator.js';

// Thrown by a handler that did nothing: the key may be used anew.
export class NothingHappened extends Error {}

// What an attempt was granted.
export class Execution {
  #lost = new AbortController();
  signal = this.#lost.signal; // aborted when the claim may be somebody else's
  done = new AbortController(); // the handler has ended

  constructor(claimed, sentAt) {
    this.downstreamKey = claimed.downstreamKey; // for the payment channel
    this.fencingToken = claimed.fencingToken;
    this.extend(claimed, sentAt);
  }

  // Counted from the sending, so that it never ends after the coordinator's.
  extend(claimed, sentAt) {
    if (this.done.signal.aborted) return;
    this.leaseMs = millis(claimed.lease);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lose(), sentAt + this.leaseMs - Date.now());
  }

  lose() {
    this.#lost.abort();
  }

  end() {
    clearTimeout(this.timer);
    this.done.abort();
  }
}
