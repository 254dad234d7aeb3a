// That each line does at a gate what it says.
#include "tests/fault/gate/gate_commands.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace idempotency::fault {
namespace {

// Two ends of a connection, the gate between them.
class GateCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    ASSERT_EQ(
        bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
    ASSERT_EQ(listen(listener_, 8), 0);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    auto gate = TcpGate::Make(ntohs(address.sin_port));
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    client_ = Connect();
    ASSERT_GE(client_, 0);
    server_ = accept(listener_, nullptr, nullptr);
  }
  void TearDown() override {
    for (const int fd : {client_, server_, listener_}) close(fd);
  }

  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  // Below zero: it is refused.
  int Connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(gate_->port());
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) == 0) {
      return fd;
    }
    close(fd);
    return -1;
  }

  std::string Do(const std::string& line) {
    return RunGateCommand(*gate_, Behind::kPostgres, line);
  }

  // All that arrives until the connection ends, and how it does.
  static std::string ReadToEnd(int fd) {
    std::string bytes;
    char buffer[64];
    for (;;) {
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got < 0) return bytes + " reset";
      if (got == 0) return bytes + " closed";
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
  }
  static void SendTo(int fd, const std::string& bytes) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  std::unique_ptr<TcpGate> gate_;
  int listener_ = -1;
  int client_ = -1;
  int server_ = -1;
};

TEST_F(GateCommandsTest, RequestIsCutBehindAByte) {
  EXPECT_EQ(Do("cut_at_byte request 3"), "ok");
  SendTo(client_, "abcdef");
  EXPECT_EQ(ReadToEnd(server_), "abc reset");
  EXPECT_EQ(ReadToEnd(client_), " reset");
}

TEST_F(GateCommandsTest, ReplyEndsBehindAByteAndRequestsGoOn) {
  EXPECT_EQ(Do("half_close_at_byte reply 2"), "ok");
  SendTo(server_, "abcdef");
  EXPECT_EQ(ReadToEnd(client_), "ab closed");
  SendTo(client_, "more");
  shutdown(client_, SHUT_WR);
  EXPECT_EQ(ReadToEnd(server_), "more closed");
}

TEST_F(GateCommandsTest, RequestsEndAndRepliesGoOn) {
  EXPECT_EQ(Do("half_close request"), "ok");
  EXPECT_EQ(ReadToEnd(server_), " closed");
  SendTo(server_, "more");
  shutdown(server_, SHUT_WR);
  EXPECT_EQ(ReadToEnd(client_), "more closed");
}

TEST_F(GateCommandsTest, GateRefusesUntilItIsOpened) {
  EXPECT_EQ(Do("refuse"), "ok");
  EXPECT_EQ(ReadToEnd(client_), " reset");
  EXPECT_LT(Connect(), 0);
  EXPECT_EQ(Do("open"), "ok");
  const int client = Connect();
  EXPECT_GE(client, 0);
  close(client);
}

TEST_F(GateCommandsTest, ConnectionsAreCut) {
  EXPECT_EQ(Do("cut"), "ok");
  EXPECT_EQ(ReadToEnd(client_), " reset");
}

TEST_F(GateCommandsTest, BytesAreHeldBackUntilTheGateIsOpened) {
  for (const char* const command :
       {"blackhole", "stall 600000", "delay 600000 600000", "throttle 1"}) {
    EXPECT_EQ(Do(command), "ok");
    SendTo(client_, std::string(100, 'x'));
    char byte;
    timeval patience{0, 50'000};
    setsockopt(server_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_LT(recv(server_, &byte, 1, 0), 0) << command;
    close(client_);
    EXPECT_EQ(Do("cut"), "ok");
    EXPECT_EQ(Do("open"), "ok");
    close(server_);
    client_ = Connect();
    server_ = accept(listener_, nullptr, nullptr);
  }
}

TEST_F(GateCommandsTest, RepliesAreSwallowedAndCounted) {
  EXPECT_EQ(Do("swallow on"), "ok");
  SendTo(server_, "gone");
  EXPECT_TRUE(gate_->WaitUntil(
      [](const TcpGate::Counters& c) { return c.swallowed_bytes == 4; },
      std::chrono::seconds(20)));
  EXPECT_EQ(Do("counters"),
            "ok connections_accepted=1 connections_open=1 request_bytes=0"
            " reply_bytes=0 swallowed_bytes=4 cuts=0");
  EXPECT_EQ(Do("swallow off"), "ok");
  SendTo(server_, "there");
  shutdown(server_, SHUT_WR);
  EXPECT_EQ(ReadToEnd(client_), "there closed");
}

TEST_F(GateCommandsTest, AnswerToTheNextRequestIsCutOff) {
  EXPECT_EQ(Do("cut_after_next_request needle"), "ok");
  SendTo(client_, "a needle");
  char bytes[8];
  ASSERT_EQ(recv(server_, bytes, sizeof(bytes), MSG_WAITALL), 8);
  // PostgreSQL's ReadyForQuery.
  SendTo(server_, std::string("Z\0\0\0\x05I", 6));
  EXPECT_EQ(ReadToEnd(client_), " reset");
}

TEST_F(GateCommandsTest, WhatIsNoCommandIsRefused) {
  for (const char* const line :
       {"", "sideways", "open now", "stall", "stall -1", "delay 5",
        "swallow maybe", "cut_at_byte reply 0", "cut_at_byte both 5",
        "half_close", "throttle fast", "cut_after_next_request two words"}) {
    EXPECT_EQ(Do(line).substr(0, 6), "error:") << line;
  }
}

}  // namespace
}  // namespace idempotency::fault
