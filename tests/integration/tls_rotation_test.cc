// Every certificate and CA is replaced, several times, while callers keep the
// server busy, with calls and over streams: none of them notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/core/mutex.h"
#include "tests/integration/fault_calls.h"
#include "tests/integration/tls_fixture.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

using testing::IsEmpty;

// Threads that claim and finalize new keys, each call sent once, until the end
// of this object.
class Callers {
 public:
  explicit Callers(std::string target) : target_(std::move(target)) {}
  ~Callers() { Stop(); }

  // Over one client, whose connection the server asks to be renewed.
  void AddSteady(std::shared_ptr<TlsFiles> files, BulkUse bulk) {
    threads_.emplace_back([this, bulk, files = std::move(files)] {
      const auto client = Connect(files, bulk);
      while (!stopping_) CallOnce(*client);
    });
  }
  // Over a new connection for each key, if nobody else has these files.
  void AddRestless(std::shared_ptr<TlsFiles> files, BulkUse bulk) {
    threads_.emplace_back([this, bulk, files = std::move(files)] {
      while (!stopping_) CallOnce(*Connect(files, bulk));
    });
  }

  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int served() const { return served_; }
  std::vector<std::string> failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }

 private:
  std::unique_ptr<Client> Connect(const std::shared_ptr<TlsFiles>& files,
                                  BulkUse bulk) {
    ClientOptions options = {.bulk = bulk, .tls = files};
    // A call is never cut off. A stream whose caller writes at the moment when
    // its connection ends is, now and then: its commands are sent again.
    options.retry.attempts_max = bulk == BulkUse::kNever ? 1 : 3;
    return Client::Connect(target_, options);
  }

  void CallOnce(Client& client) {
    v1::ClaimRequest claim = ClaimOf(RandomKey());
    const absl::Status claimed =
        Send([&] { return client.Claim(claim).status(); });
    if (!claimed.ok()) return Note(claimed);
    const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, "body");
    const absl::Status recorded =
        Send([&] { return client.Finalize(finalize).status(); });
    if (!recorded.ok()) return Note(recorded);
    ++served_;
  }

  // gRPC 1.51 fails a call that meets the server's wish to reconnect, under
  // any credentials: the one thing after which a call is sent again.
  static absl::Status Send(const std::function<absl::Status()>& call) {
    for (;;) {
      absl::Status status = call();
      if (!absl::StrContains(status.message(), "GOAWAY received")) {
        return status;
      }
    }
  }

  void Note(const absl::Status& status) {
    MutexLock lock(mutex_);
    failures_.push_back(status.ToString());
  }

  const std::string target_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> served_{0};
  mutable Mutex mutex_;
  std::vector<std::string> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

class TlsRotationTest : public TlsTest {
 protected:
  using Write = void (*)(const std::string&, const std::string&);

  // Does `action`, and waits until the server's log says `line` once more and
  // clients that look now use other files.
  void Await(const std::string& line, const std::function<void()>& action) {
    const int lines = Lines(*server_process_, line);
    std::vector<std::shared_ptr<grpc::ChannelCredentials>> before;
    for (const auto& files : clients_) before.push_back(files->Current());
    action();
    EXPECT_TRUE(Eventually([&] {
      for (std::size_t i = 0; i < clients_.size(); ++i) {
        if (clients_[i]->Current() == before[i]) return false;
      }
      return Lines(*server_process_, line) > lines;
    })) << line;
  }

  // The new authority beside the old one, then the server's and the client's
  // pair, keys first, then the new authority alone.
  void Rotate(const TestAuthority& from, const TestAuthority& to, Write write) {
    const std::string both = from.certificate() + to.certificate();
    Await(kInUse, [&] {
      write(server_ca_file(), both);
      write(client_ca_file(), both);
    });

    const std::string served = Served(both);
    const IssuedCertificate server = to.Issue();
    const IssuedCertificate client = to.Issue({.names = "DNS:client"});
    const int warnings = Lines(*server_process_, kNotUsed);
    write(key_file(), server.key);
    write(Path("client.key"), client.key);
    EXPECT_TRUE(Eventually([&] {
      clients_.front()->Current();
      return Lines(*server_process_, kNotUsed) > warnings &&
             !clients_.front()->problem().ok();
    }));
    EXPECT_EQ(Served(both), served);
    Await(kInUse, [&] {
      write(certificate_file(), server.certificate);
      write(Path("client.crt"), client.certificate);
    });
    shown_ = client;
    EXPECT_EQ(Served(both), server.serial);

    Await(kInUse, [&] {
      write(server_ca_file(), to.certificate());
      write(client_ca_file(), to.certificate());
    });
    EXPECT_EQ(Served(to.certificate()), server.serial);
    TlsProbe outdated = ProbeOf(*server_process_, from.Issue());
    outdated.ca = to.certificate();
    EXPECT_FALSE(Probe(outdated).accepted);
  }

  // The serial number of what a new connection is shown.
  std::string Served(const std::string& ca) const {
    TlsProbe probe = ProbeOf(*server_process_, shown_);
    probe.ca = ca;
    const TlsAnswer answer = Probe(probe);
    EXPECT_TRUE(answer.accepted) << answer.error;
    return answer.serial;
  }

  std::unique_ptr<Replica> server_process_;
  std::vector<std::shared_ptr<TlsFiles>> clients_;
  IssuedCertificate shown_ = client_;
};

TEST_F(TlsRotationTest, NoCallFailsWhileEverythingIsReplaced) {
  Replica::Options options;
  options.database = Require(TempPostgres::SharedDatabase());
  options.flags = MutualTlsFlags();
  options.flags.push_back("--max_connection_age=1s");
  options.client.credentials = ClientFiles()->Current();
  server_process_ = Require(Replica::Start(std::move(options)));

  for (int i = 0; i < 5; ++i) clients_.push_back(ClientFiles());
  Callers callers(server_process_->target());
  callers.AddSteady(clients_[0], BulkUse::kNever);
  callers.AddSteady(clients_[1], BulkUse::kAlways);
  callers.AddSteady(clients_[2], BulkUse::kAlways);
  callers.AddRestless(clients_[3], BulkUse::kNever);
  callers.AddRestless(clients_[4], BulkUse::kAlways);

  const TestAuthority second("second");
  const TestAuthority third("third");
  Rotate(authority_, second, &ReplaceFile);
  Rotate(second, third, &OverwriteFile);
  Rotate(third, authority_, &ReplaceFile);
  callers.Stop();

  EXPECT_THAT(callers.failures(), IsEmpty());
  EXPECT_GT(callers.served(), 1000);
  EXPECT_EQ(Lines(*server_process_, kNotUsed), 3);
  RecordProperty("served", callers.served());
}

}  // namespace
}  // namespace idempotency
