// Whom the server lets in over TLS, whom clients believe, and when the server
// refuses to start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/tls_fixture.h"
#include "tests/support/port.h"

namespace idempotency {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

std::string Target(const Replica& server, const std::string& host) {
  return absl::StrCat(host, ":", server.port());
}

// One attempt of a call. A server without a database answers it with a reason
// of its own; without that the call did not reach it.
std::string ReasonOfACall(const std::string& target,
                          const ClientOptions& with) {
  ClientOptions options = with;
  options.retry.attempts_max = 1;
  const auto client = Client::Connect(target, options);
  v1::LookupRequest request;
  request.set_scope("tests/tls");
  request.set_key("key");
  return ErrorReasonOf(client->Lookup(request).status());
}

constexpr char kReached[] = "STORE_UNAVAILABLE";
constexpr char kNotReached[] = "";

TEST_F(TlsTest, SpeaksTls13AndTls12AndHttp2AndShowsItsChain) {
  ReplaceFile(certificate_file(),
              server_.certificate + authority_.certificate());
  const auto server = StartServer(TlsFlags());
  TlsProbe probe = ProbeOf(*server);
  const TlsAnswer newest = Probe(probe);
  EXPECT_TRUE(newest.accepted) << newest.error;
  EXPECT_EQ(newest.version, "TLSv1.3");
  EXPECT_EQ(newest.alpn, "h2");
  EXPECT_EQ(newest.serial, server_.serial);
  EXPECT_EQ(newest.chain_length, 2);
  probe.version_max = TLS1_2_VERSION;
  const TlsAnswer older = Probe(probe);
  EXPECT_TRUE(older.accepted) << older.error;
  EXPECT_EQ(older.version, "TLSv1.2");
  EXPECT_EQ(older.alpn, "h2");
}

TEST_F(TlsTest, OlderVersionsAreRefused) {
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    const auto server = StartServer(TlsFlags());
    TlsProbe probe = ProbeOf(*server);
    probe.version_max = version;
    const TlsAnswer answer = Probe(probe);
    EXPECT_FALSE(answer.accepted) << version;
    // For what the server says of it, and not for anything of this client.
    EXPECT_TRUE(server->WaitForLogLine("unsupported protocol").ok())
        << server->Log();
  }
}

TEST_F(TlsTest, AClientShowsACertificateThatLeadsToTheClientCa) {
  const auto server = StartServer(MutualTlsFlags());
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const auto answer = [&](const IssuedCertificate& shown) {
      TlsProbe probe = ProbeOf(*server, shown);
      probe.version_max = version;
      return Probe(probe);
    };
    EXPECT_TRUE(answer(client_).accepted) << answer(client_).error;
    const absl::Time now = absl::Now();
    for (const IssuedCertificate& refused :
         {IssuedCertificate{}, stranger_.Issue(),
          authority_.Issue(
              {.not_before = now - kDay, .not_after = now - absl::Minutes(1)}),
          authority_.Issue({.not_before = now + absl::Minutes(10),
          .not_after = now + kDay})}) {
      const TlsAnswer refusal = answer(refused);
      EXPECT_FALSE(refusal.accepted);
      EXPECT_EQ(refusal.serial, server_.serial) << refusal.error;
    }
  }
}

TEST_F(TlsTest, AClientBelievesTheNameItAskedForOnly) {
  const auto server = StartServer(MutualTlsFlags());
  const ClientOptions options = {.tls = ClientFiles()};
  EXPECT_EQ(ReasonOfACall(Target(*server, "127.0.0.1"), options), kReached);
  EXPECT_EQ(ReasonOfACall(Target(*server, "localhost"), options), kReached);

  WriteServer(authority_.Issue({.names = "IP:127.0.0.2,DNS:other.example"}));
  const auto other = StartServer(MutualTlsFlags());
  EXPECT_TRUE(Probe(ProbeOf(*other, client_)).accepted);
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    EXPECT_EQ(ReasonOfACall(Target(*other, host), options), kNotReached);
  }
}

TEST_F(TlsTest, AClientBelievesValidCertificatesOfItsCaOnly) {
  const auto server = StartServer(TlsFlags());
  const std::string target = Target(*server, "127.0.0.1");
  const auto reason = [&](const TlsOptions& options) {
    const auto files = TlsFiles::Load(options);
    EXPECT_TRUE(files.ok()) << files.status();
    return ReasonOfACall(target, {.tls = *files});
  };
  EXPECT_EQ(reason({.server_ca_file = server_ca_file()}), kReached);
  // Those whom the system trusts.
  EXPECT_EQ(reason({}), kNotReached);
  ReplaceFile(Path("stranger.crt"), stranger_.certificate());
  EXPECT_EQ(reason({.server_ca_file = Path("stranger.crt")}), kNotReached);

  WriteServer(authority_.Issue({.not_before = absl::Now() - kDay,
                                .not_after = absl::Now() - absl::Minutes(1)}));
  const auto expired = StartServer(TlsFlags());
  EXPECT_TRUE(
      expired->WaitForLogLine("not valid by this machine's clock").ok());
  EXPECT_EQ(
      ReasonOfACall(Target(*expired, "127.0.0.1"), {.tls = ClientFiles()}),
      kNotReached);
}

TEST_F(TlsTest, PlaintextAndTlsDoNotMix) {
  const auto encrypted = StartServer(TlsFlags());
  EXPECT_EQ(ReasonOfACall(Target(*encrypted, "127.0.0.1"), {}), kNotReached);
  const auto plain = StartServer({});
  EXPECT_EQ(ReasonOfACall(Target(*plain, "127.0.0.1"), {}), kReached);
  EXPECT_EQ(ReasonOfACall(Target(*plain, "127.0.0.1"), {.tls = ClientFiles()}),
            kNotReached);
}

TEST_F(TlsTest, AServerThatWasGivenHalfANewPairServesTheOldOne) {
  const auto server = StartServer(TlsFlags());
  const IssuedCertificate next = authority_.Issue();
  ReplaceFile(key_file(), next.key);
  ASSERT_TRUE(server->WaitForLogLine(kNotUsed).ok());
  EXPECT_EQ(Probe(ProbeOf(*server)).serial, server_.serial);
  EXPECT_TRUE(Probe(ProbeOf(*server)).accepted);
  ReplaceFile(certificate_file(), next.certificate);
  ASSERT_TRUE(server->WaitForLogLine(kInUse).ok());
  EXPECT_EQ(Probe(ProbeOf(*server)).serial, next.serial);
  EXPECT_TRUE(Probe(ProbeOf(*server)).accepted);
  EXPECT_EQ(Lines(*server, kNotUsed), 1);
}

TEST_F(TlsTest, AClientWithHalfANewPairShowsTheOldOne) {
  const auto files = ClientFiles();
  const auto before = files->Current();
  const IssuedCertificate next = stranger_.Issue();
  ReplaceFile(Path("client.crt"), next.certificate);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(files->Current(), before);
    return !files->problem().ok();
  }));
  EXPECT_THAT(files->problem().message(), HasSubstr(Path("client.key")));
  ReplaceFile(Path("client.key"), next.key);
  EXPECT_TRUE(Eventually([&] { return files->Current() != before; }));
  EXPECT_TRUE(files->problem().ok());
}

TEST_F(TlsTest, AClientIsNotMadeOfFilesThatDoNotFit) {
  const auto error = [](const TlsOptions& options) {
    return std::string(TlsFiles::Load(options).status().message());
  };
  const std::string certificate = Path("client.crt");
  EXPECT_THAT(error({.certificate_file = certificate}),
              HasSubstr("go together"));
  EXPECT_THAT(error({.certificate_file = certificate, .key_file = key_file()}),
              AllOf(HasSubstr(key_file()), HasSubstr(certificate)));
  EXPECT_THAT(error({.server_ca_file = Path("none")}), HasSubstr(Path("none")));
  EXPECT_THAT(error({.server_ca_file = key_file()}),
              AllOf(HasSubstr(key_file()), HasSubstr("no certificates")));
}

// The server's exit status and output with these flags.
class TlsStartTest : public TlsTest {
 protected:
  static void ExpectRefused(const std::vector<std::string>& flags,
                            const std::string& flag, const std::string& what) {
    Replica::Options options;
    options.database = "postgresql://nobody@127.0.0.1:1/none";
    options.flags = flags;
    options.wait_until_serving = false;
    const auto server = Replica::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    const auto exit = (*server)->WaitForExit();
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->code, 2);
    EXPECT_THAT((*server)->Log(), AllOf(HasSubstr(flag), HasSubstr(what)));
  }
};

TEST_F(TlsStartTest, FilesThatCannotBeServedEndTheServerWithTheRemedy) {
  const std::string certificate = "--tls_certificate=" + certificate_file();
  const std::string key = "--tls_key=" + key_file();
  ExpectRefused({certificate}, "--tls_key", "go together");
  ExpectRefused({key}, "--tls_certificate", "go together");
  ExpectRefused({"--tls_client_ca=" + client_ca_file()}, "--tls_client_ca",
                "give --tls_certificate and --tls_key");
  ExpectRefused({"--tls_certificate=" + Path("none"), key}, Path("none"),
                "No such file");
  ExpectRefused({certificate, "--tls_key=" + Path("client.key")},
                Path("client.key"), "name two files that belong together");
  ExpectRefused({"--tls_certificate=" + key_file(), key}, "--tls_certificate",
                "in PEM form");
  ExpectRefused({certificate, key, "--tls_client_ca=" + key_file()},
                "--tls_client_ca", "in PEM form");
}

TEST_F(TlsStartTest, WithTlsItMayListenBeyondLoopback) {
  std::vector<std::string> flags = TlsFlags();
  const int port = FreePort();
  flags.push_back(absl::StrCat("--listen=0.0.0.0:", port));
  const auto server = StartServer(flags);
  TlsProbe probe = ProbeOf(*server);
  probe.port = port;
  EXPECT_TRUE(Probe(probe).accepted);
}

TEST_F(TlsStartTest, EverythingMayComeFromTheEnvironment) {
  Replica::Options options;
  options.database = "postgresql://nobody@127.0.0.1:1/none";
  options.environment = {"IDEMPOTENCY_TLS_CERTIFICATE=" + certificate_file(),
                         "IDEMPOTENCY_TLS_KEY=" + key_file(),
                         "IDEMPOTENCY_TLS_CLIENT_CA=" + client_ca_file()};
  options.wait_until_serving = false;
  const auto server = Replica::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const auto line = (*server)->WaitForLogLine("\"listening\"");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("with client certificates"));
  EXPECT_TRUE(Probe(ProbeOf(**server, client_)).accepted);
  EXPECT_FALSE(Probe(ProbeOf(**server)).accepted);
}

}  // namespace
}  // namespace idempotency
