// PostgreSQL reached over TLS, and what the server says when it can't trust it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/integration/fault_calls.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"
#include "tests/support/test_certificates.h"

namespace idempotency {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kPassword[] = "hunter2";

class DatabaseTlsTest : public testing::Test {
 protected:
  DatabaseTlsTest() {
    Serve(authority_.Issue());
    ReplaceFile(Path("ca.crt"), authority_.certificate());
    ReplaceFile(Path("stranger.crt"), stranger_.certificate());
  }

  std::string Path(const std::string& name) const {
    return folder_->path() + "/" + name;
  }

  // Makes PostgreSQL speak TLS with that certificate.
  void Serve(const IssuedCertificate& issued) {
    const std::string folder = Require(postgres_->Run("SHOW data_directory"));
    struct stat owner {};
    ASSERT_EQ(stat(folder.c_str(), &owner), 0);
    for (const auto& [name, content] :
         {std::pair{"/tls.crt", issued.certificate},
          std::pair{"/tls.key", issued.key}}) {
      const std::string file = folder + name;
      OverwriteFile(file, content);
      // As PostgreSQL demands it of its key.
      ASSERT_EQ(chmod(file.c_str(), S_IRUSR | S_IWUSR), 0);
      ASSERT_EQ(chown(file.c_str(), owner.st_uid, owner.st_gid), 0);
    }
    for (const std::string setting : {"ssl = on", "ssl_cert_file = 'tls.crt'",
                                      "ssl_key_file = 'tls.key'"}) {
      Require(postgres_->Run("ALTER SYSTEM SET " + setting));
    }
    // A restart, since a reload takes its time.
    RequireOk(postgres_->Restart());
    ASSERT_EQ(Require(postgres_->Run("SHOW ssl")), "on");
  }

  std::string Uri(const std::string& ca) {
    const std::string plain = Require(postgres_->CreateDatabase());
    return absl::StrCat(
        absl::StrReplaceAll(
            plain,
            {{"idempotency@", absl::StrCat("idempotency:", kPassword, "@")}}),
        "?sslmode=verify-full&sslrootcert=", Path(ca));
  }

  // The server starts, does not serve, and says why.
  static void ExpectNotServing(const std::string& uri,
                               const std::string& cause) {
    Replica::Options options;
    options.database = uri;
    options.wait_until_serving = false;
    const auto replica = Require(Replica::Start(std::move(options)));
    const auto line = replica->WaitForLogLine("not serving");
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_THAT(*line, HasSubstr(cause));
    EXPECT_TRUE(replica->WaitUntilNotServing().ok());
    EXPECT_THAT(replica->Log(), Not(HasSubstr(kPassword)));
    EXPECT_THAT(replica->Log(), Not(HasSubstr("postgresql://")));
  }

  const std::unique_ptr<TempFolder> folder_ = Require(TempFolder::Make());
  const std::unique_ptr<TempPostgres> postgres_ =
      Require(TempPostgres::Make({.fsync = false, .settings = {}}));
  const TestAuthority authority_{"authority"};
  const TestAuthority stranger_{"stranger"};
};

TEST_F(DatabaseTlsTest, VerifyFullIsServedOverTls) {
  const auto replica = StartReplica(Uri("ca.crt"));
  const auto claimed = Send(replica->stub(), ClaimOf(RandomKey()));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE(claimed->has_claimed());
  EXPECT_EQ(Require(postgres_->Run(
                "SELECT bool_and(ssl), count(*) > 0 FROM pg_stat_ssl "
                "JOIN pg_stat_activity USING (pid) WHERE client_port > 0")),
            "t\tt");
}

TEST_F(DatabaseTlsTest, ADatabaseThatCannotBeTrustedIsNotServedFrom) {
  ExpectNotServing(Uri("stranger.crt"), "not signed by a CA of sslrootcert");
  ExpectNotServing(Uri("none.crt"), "sslrootcert can't be read");
  Serve(authority_.Issue({.names = "DNS:other.example,IP:127.0.0.2"}));
  ExpectNotServing(Uri("ca.crt"), "for another host name");
  Serve(authority_.Issue({.not_before = absl::Now() - absl::Hours(2),
                          .not_after = absl::Now() - absl::Hours(1)}));
  ExpectNotServing(Uri("ca.crt"), "expired");
  Require(postgres_->Run("ALTER SYSTEM SET ssl = off"));
  RequireOk(postgres_->Restart());
  ExpectNotServing(Uri("ca.crt"), "does not speak TLS");
}

}  // namespace
}  // namespace idempotency
