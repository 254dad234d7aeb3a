#include "tests/fault/checker/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/temp_folder.h"

namespace idempotency::fault {
namespace {

using ::testing::HasSubstr;

// An event of each kind with every field set.
std::vector<Event> FullEvents() {
  return {CallEvent{.op = "c1-1",
                    .t = 1,
                    .path = Path::kClient,
                    .kind = Kind::kRelease,
                    .scope = "fault/r1",
                    .key = "k \n%=é",
                    .token = "t",
                    .hash = "00",
                    .renew = 2,
                    .lease_us = 0,
                    .wait_us = 3,
                    .resolve = true,
                    .policy = "p",
                    .checkpoint = "",
                    .checkpoint_number = 4,
                    .owner = "me",
                    .disposition = SaidDisposition::kNeverExecuted,
                    .status = 200,
                    .digest = "01",
                    .body_omitted = true,
                    .headers_omitted = true,
                    .body_bytes = 6,
                    .header_count = 7,
                    .header_bytes = 8,
                    .deadline_us = 5},
          AnswerEvent{.op = "c1-1",
                      .t = 2,
                      .code = "OK",
                      .reason = "R",
                      .sends = 3,
                      .outcome = Outcome::kFound,
                      .fencing = 4,
                      .attempt = 5,
                      .lease_us = 6,
                      .lease_until_us = 7,
                      .expires_us = 8,
                      .downstream = "d",
                      .status = 9,
                      .digest = "02",
                      .body_omitted = true,
                      .headers_omitted = true,
                      .created_us = 10,
                      .claimed_us = 11,
                      .finalized_us = 12,
                      .retry_after_us = 13,
                      .state = SaidState::kInDoubt,
                      .hash = "03",
                      .policy = "p",
                      .checkpoint = "04",
                      .conflicts = 14,
                      .owner = "o",
                      .abandoned_attempt = 15,
                      .abandoned_fencing = 16,
                      .abandoned_claimed_us = 17,
                      .abandoned_us = 18,
                      .abandoned_reason = SaidReason::kServerError,
                      .abandoned_status = 19,
                      .abandoned_checkpoint = "05",
                      .abandoned_downstream = "d",
                      .abandoned_owner = "a"},
          EffectEvent{.t = 3,
                      .scope = "s",
                      .key = "k",
                      .downstream = "d",
                      .token = "t",
                      .fencing = 1,
                      .result = EffectResult::kRefused},
          NoteEvent{.t = 4,
                    .fault = "kill",
                    .phase = Phase::kBegin,
                    .caller = "c1",
                    .text = "in words"},
          NoteEvent{.t = 4, .phase = Phase::kClosing},
          ClockEvent{.t = 5, .database_us = 6, .error_ns = 7}};
}

std::string Problem(std::string_view line) {
  const absl::StatusOr<Event> event = ParseEvent(line);
  return event.ok() ? "" : std::string(event.status().message());
}

class HistoryFileTest : public testing::Test {
 protected:
  std::string Contents() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  absl::StatusOr<std::vector<Event>> Read() const {
    std::vector<Event> events;
    const absl::Status status = ReadHistory(path_, [&](Event&& event) {
      events.push_back(std::move(event));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return events;
  }

  const std::unique_ptr<TempFolder> folder_ = *TempFolder::Make();
  const std::string path_ = folder_->path() + "/history";
};

TEST(HistoryTest, EveryFieldComesBack) {
  for (const Event& event : FullEvents()) {
    const std::string line = FormatEvent(event);
    const absl::StatusOr<Event> read = ParseEvent(line);
    ASSERT_TRUE(read.ok()) << read.status() << ": " << line;
    EXPECT_TRUE(*read == event) << line;
  }
}

TEST(HistoryTest, LooksAsTheHeaderSays) {
  EXPECT_EQ(FormatEvent(CallEvent{.op = "c1-1",
                                  .t = 12,
                                  .path = Path::kUnary,
                                  .kind = Kind::kLookup,
                                  .scope = "s",
                                  .key = "a b"}),
            "call op=c1-1 t=12 path=unary kind=lookup scope=s key=a%20b\n");
}

TEST(HistoryTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Problem("hello t=1"), HasSubstr("no event's word"));
  EXPECT_THAT(Problem(""), HasSubstr("no event's word"));
  EXPECT_THAT(Problem("note t=1 colour=red"), HasSubstr("'colour'"));
  EXPECT_THAT(Problem("note t=1 t=2"), HasSubstr("said twice"));
  EXPECT_THAT(Problem("note text=x"), HasSubstr("'t' is missing"));
  EXPECT_THAT(Problem("note t="), HasSubstr("'t' has no such value"));
  EXPECT_THAT(Problem("note t=1x"), HasSubstr("'t' has no such value"));
  EXPECT_THAT(Problem("note t=1  text=x"), HasSubstr("no field"));
  EXPECT_THAT(Problem("note t=1 text"), HasSubstr("no field"));
  EXPECT_THAT(Problem("note t=1 phase=middle"), HasSubstr("'phase'"));
  EXPECT_THAT(Problem("note t=1 text=%2"), HasSubstr("'text'"));
  EXPECT_THAT(Problem("note t=1 text=%41"), HasSubstr("'text'"));
  EXPECT_THAT(Problem("note t=1 text=\x01"), HasSubstr("'text'"));
  EXPECT_THAT(Problem("answer op=c1-1 t=1 code=FINE"), HasSubstr("no code"));
  EXPECT_THAT(Problem("call op=c1-1 t=1 path=unary kind=claim scope=s key=k "
                      "resolve=0"),
              HasSubstr("'resolve'"));
}

TEST_F(HistoryFileTest, ALineIsThereOnceItIsAppended) {
  const auto writer = HistoryWriter::Open(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Event& event : FullEvents()) {
    ASSERT_TRUE((*writer)->Append(event).ok());
    EXPECT_THAT(Contents(), testing::EndsWith(FormatEvent(event)));
  }
  EXPECT_TRUE(Read().value() == FullEvents());
}

TEST_F(HistoryFileTest, ThreadsDoNotMixTheirLines) {
  const auto writer = HistoryWriter::Open(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const Event event = NoteEvent{.t = 7, .text = std::string(300, 'x')};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        EXPECT_TRUE((*writer)->Append(event).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Read().value() == std::vector<Event>(800, event));
}

TEST_F(HistoryFileTest, ATornLastLineCountsAsNeverWritten) {
  std::ofstream(path_) << "note t=1\nnote t=2 te";
  EXPECT_EQ(Read().value().size(), 1U);
  const auto writer = HistoryWriter::Open(path_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(NoteEvent{.t = 3}).ok());
  EXPECT_EQ(Contents(), "note t=1\nnote t=3\n");
}

TEST_F(HistoryFileTest, ErrorsNameFileAndLine) {
  std::ofstream(path_) << "note t=1\nnote t=x\n";
  EXPECT_THAT(std::string(Read().status().message()),
              HasSubstr(path_ + ":2: 't' has no such value"));
  EXPECT_FALSE(ReadHistory("/nowhere/history", [](Event&&) {
                 return absl::OkStatus();
               }).ok());
}

}  // namespace
}  // namespace idempotency::fault
