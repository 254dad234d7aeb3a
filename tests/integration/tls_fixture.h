// Certificate files, a server process that uses them, and clients of it.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_TLS_FIXTURE_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_TLS_FIXTURE_H_

#include <gtest/gtest.h>
#include <openssl/tls1.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/credentials.h"
#include "tests/support/replica.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"
#include "tests/support/tls_probe.h"

namespace idempotency {

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    EXPECT_TRUE(folder_.ok()) << folder_.status();
    WriteServer(server_);
    WriteClient(client_);
    ReplaceFile(server_ca_file(), authority_.certificate());
    ReplaceFile(client_ca_file(), authority_.certificate());
  }

  std::string Path(const std::string& name) const {
    return (*folder_)->path() + "/" + name;
  }
  std::string certificate_file() const { return Path("server.crt"); }
  std::string key_file() const { return Path("server.key"); }
  // What clients trust, and what the server does.
  std::string server_ca_file() const { return Path("server_ca.crt"); }
  std::string client_ca_file() const { return Path("client_ca.crt"); }

  void WriteServer(const IssuedCertificate& issued) const {
    ReplaceFile(certificate_file(), issued.certificate);
    ReplaceFile(key_file(), issued.key);
  }
  void WriteClient(const IssuedCertificate& issued) const {
    ReplaceFile(Path("client.crt"), issued.certificate);
    ReplaceFile(Path("client.key"), issued.key);
  }

  std::vector<std::string> TlsFlags() const {
    return {"--tls_certificate=" + certificate_file(),
            "--tls_key=" + key_file()};
  }
  std::vector<std::string> MutualTlsFlags() const {
    std::vector<std::string> flags = TlsFlags();
    flags.push_back("--tls_client_ca=" + client_ca_file());
    return flags;
  }

  // A server that listens; its database does not answer.
  static std::unique_ptr<Replica> StartServer(std::vector<std::string> flags) {
    Replica::Options options;
    options.database = "postgresql://nobody@127.0.0.1:1/none";
    options.flags = std::move(flags);
    options.flags.push_back("--store_patience=0");
    options.wait_until_serving = false;
    auto server = Replica::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    if (!server.ok()) return nullptr;
    const auto listening = (*server)->WaitForLogLine("\"listening\"");
    EXPECT_TRUE(listening.ok()) << listening.status();
    return *std::move(server);
  }

  TlsProbe ProbeOf(const Replica& server) const {
    return {.port = server.port(), .ca = authority_.certificate()};
  }
  TlsProbe ProbeOf(const Replica& server,
                   const IssuedCertificate& shown) const {
    TlsProbe probe = ProbeOf(server);
    probe.shown = shown;
    return probe;
  }

  std::shared_ptr<TlsFiles> ClientFiles() const {
    auto files = TlsFiles::Load({.server_ca_file = server_ca_file(),
                                 .certificate_file = Path("client.crt"),
                                 .key_file = Path("client.key")});
    EXPECT_TRUE(files.ok()) << files.status();
    return files.ok() ? *std::move(files) : nullptr;
  }

  // Looks again and again.
  static testing::AssertionResult Eventually(
      const std::function<bool()>& holds) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (std::chrono::steady_clock::now() > end) {
        return testing::AssertionFailure() << "not within 20 s";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return testing::AssertionSuccess();
  }

  // Lines of the log with `text` so far.
  static int Lines(const Replica& server, const std::string& text) {
    int count = 0;
    for (const std::string& line : server.LogLines()) {
      if (line.find(text) != std::string::npos) ++count;
    }
    return count;
  }

  const absl::StatusOr<std::unique_ptr<TempFolder>> folder_ =
      TempFolder::Make();
  const TestAuthority authority_{"authority"};
  const TestAuthority stranger_{"stranger"};
  const IssuedCertificate server_ = authority_.Issue();
  const IssuedCertificate client_ = authority_.Issue({.names = "DNS:client"});
};

inline constexpr char kInUse[] = "new certificate files are in use";
inline constexpr char kNotUsed[] = "the new certificate files can't be used";

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_TLS_FIXTURE_H_
