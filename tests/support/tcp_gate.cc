#include "tests/support/tcp_gate.h"

#include <utility>

#include "tests/support/port.h"
#include "tests/support/tcp_gate_loop.h"

namespace idempotency {

bool TcpGate::EndsWithReadyForQuery(std::string_view reply) {
  // Type, length 5, transaction status idle.
  constexpr std::string_view kMessage("Z\0\0\0\x05I", 6);
  return reply.size() >= kMessage.size() &&
         reply.substr(reply.size() - kMessage.size()) == kMessage;
}

absl::StatusOr<std::unique_ptr<TcpGate>> TcpGate::Make(int target_port) {
  auto loop = std::make_unique<Loop>(FreePort(), target_port);
  if (absl::Status s = loop->Start(); !s.ok()) return s;
  return std::unique_ptr<TcpGate>(new TcpGate(std::move(loop)));
}

TcpGate::TcpGate(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

TcpGate::~TcpGate() = default;

int TcpGate::port() const { return loop_->port(); }

void TcpGate::Open() {
  loop_->Do([this] {
    loop_->modes() = Loop::Modes();
    loop_->Listen();
  });
}

void TcpGate::Refuse() {
  loop_->Do([this] {
    loop_->StopListening();
    loop_->ResetAll();
  });
}

void TcpGate::CutAll() {
  loop_->Do([this] {
    loop_->ResetBacklog();
    loop_->ResetAll();
  });
}

void TcpGate::BlackHole() {
  loop_->Do([this] { loop_->modes().black_hole = true; });
}

void TcpGate::Stall(std::chrono::milliseconds time) {
  loop_->Do([this, time] {
    loop_->modes().stalled_until = Loop::Clock::now() + time;
  });
}

void TcpGate::SwallowReplies(bool swallow) {
  loop_->Do([this, swallow] { loop_->modes().swallow_replies = swallow; });
}

void TcpGate::CutAfterNextRequest(Cut cut) {
  loop_->Do([this, &cut] {
    loop_->modes().cut = std::make_unique<Cut>(std::move(cut));
  });
}

void TcpGate::EndAtByte(Way way, std::int64_t byte, End end) {
  loop_->Do([this, way, byte, end] {
    loop_->modes().end_at_byte = {.way = way, .left = byte, .end = end};
  });
}

void TcpGate::HalfClose(Way way) {
  loop_->Do([this, way] { loop_->HalfCloseAll(way); });
}

void TcpGate::Delay(std::chrono::milliseconds requests,
                    std::chrono::milliseconds replies) {
  loop_->Do([this, requests, replies] {
    loop_->modes().request_delay = requests;
    loop_->modes().reply_delay = replies;
  });
}

void TcpGate::Throttle(std::int64_t bytes_per_second) {
  loop_->Do([this, bytes_per_second] {
    loop_->modes().bytes_per_second = bytes_per_second;
  });
}

TcpGate::Counters TcpGate::counters() const { return loop_->counters(); }

bool TcpGate::WaitUntil(const std::function<bool(const Counters&)>& condition,
                        std::chrono::milliseconds timeout) const {
  return loop_->WaitUntil(condition, timeout);
}

bool TcpGate::WaitForCuts(std::int64_t cuts,
                          std::chrono::milliseconds timeout) const {
  return WaitUntil([cuts](const Counters& c) { return c.cuts >= cuts; },
                   timeout);
}

}  // namespace idempotency
