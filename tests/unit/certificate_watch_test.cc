#include "server/rpc/certificate_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "tests/support/memory_log.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_certificates.h"

namespace idempotency {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class CertificateWatchTest : public testing::Test {
 protected:
  CertificateWatchTest() {
    EXPECT_TRUE(folder_.ok()) << folder_.status();
    files_ = {.tls_certificate = (*folder_)->path() + "/server.crt",
              .tls_key = (*folder_)->path() + "/server.key",
              .tls_client_ca = (*folder_)->path() + "/ca.crt"};
    Write(first_);
    ReplaceFile(files_.tls_client_ca, authority_.certificate());
  }

  void Write(const IssuedCertificate& issued) const {
    ReplaceFile(files_.tls_certificate, issued.certificate);
    ReplaceFile(files_.tls_key, issued.key);
  }

  std::unique_ptr<CertificateWatch> Start() {
    auto watch = CertificateWatch::Start(files_, log_);
    EXPECT_TRUE(watch.ok()) << watch.status();
    return watch.ok() ? *std::move(watch) : nullptr;
  }

  std::string LoadError() const {
    return std::string(LoadCertificates(files_).status().message());
  }

  static std::string Served(const CertificateWatch& watch) {
    return watch.current()->pems.certificate;
  }

  // Twice, so that the files have settled.
  void Look(CertificateWatch& watch) const {
    watch.Look(now_);
    watch.Look(now_);
  }

  absl::StatusOr<std::unique_ptr<TempFolder>> folder_ = TempFolder::Make();
  CertificateFiles files_;
  const TestAuthority authority_{"authority"};
  const absl::Time now_ = absl::Now();
  const IssuedCertificate first_ = authority_.Issue();
  const IssuedCertificate second_ = authority_.Issue();
  MemoryLog log_;
};

TEST_F(CertificateWatchTest, TakesOverWhatTwoLooksFound) {
  const auto watch = Start();
  Look(*watch);
  EXPECT_THAT(log_.lines(), IsEmpty());
  Write(second_);
  watch->Look(now_);
  EXPECT_EQ(Served(*watch), first_.certificate);
  watch->Look(now_);
  EXPECT_EQ(Served(*watch), second_.certificate);
  EXPECT_THAT(log_.lines(), ElementsAre(HasSubstr("are in use")));
}

TEST_F(CertificateWatchTest, AFileThatGrowsIsNotTakenForWhole) {
  const auto watch = Start();
  const std::string chain = second_.certificate + authority_.certificate();
  OverwriteFile(files_.tls_key, second_.key);
  OverwriteFile(files_.tls_certificate, second_.certificate);
  watch->Look(now_);
  OverwriteFile(files_.tls_certificate, chain);
  watch->Look(now_);
  EXPECT_EQ(Served(*watch), first_.certificate);
  watch->Look(now_);
  EXPECT_EQ(Served(*watch), chain);
}

TEST_F(CertificateWatchTest, AHalfReplacedPairIsNotServedAndToldOnce) {
  const auto watch = Start();
  ReplaceFile(files_.tls_key, second_.key);
  for (int i = 0; i < 5; ++i) Look(*watch);
  EXPECT_EQ(Served(*watch), first_.certificate);
  EXPECT_THAT(log_.lines(),
              ElementsAre(AllOf(HasSubstr("can't be used"),
                                HasSubstr("--tls_key: " + files_.tls_key),
                                HasSubstr(files_.tls_certificate))));
  ReplaceFile(files_.tls_certificate, second_.certificate);
  Look(*watch);
  EXPECT_EQ(Served(*watch), second_.certificate);
  EXPECT_EQ(watch->current()->pems.key, second_.key);

  // The next time is news again.
  ReplaceFile(files_.tls_key, first_.key);
  Look(*watch);
  EXPECT_THAT(log_.lines(), SizeIs(3));
}

TEST_F(CertificateWatchTest, WhatCannotBeUsedLeavesTheLastGoodFilesInUse) {
  const auto watch = Start();
  const auto expect_kept = [&](const std::string& file,
                               const std::string& what) {
    Look(*watch);
    EXPECT_EQ(Served(*watch), first_.certificate);
    EXPECT_EQ(watch->current()->pems.client_ca, authority_.certificate());
    EXPECT_THAT(log_.lines().back(), AllOf(HasSubstr(file), HasSubstr(what)));
    Write(first_);
    ReplaceFile(files_.tls_client_ca, authority_.certificate());
    Look(*watch);
  };
  std::remove(files_.tls_certificate.c_str());
  expect_kept(files_.tls_certificate, "No such file");
  OverwriteFile(files_.tls_key, "");
  expect_kept(files_.tls_key, "empty");
  OverwriteFile(files_.tls_client_ca, "no PEM");
  expect_kept(files_.tls_client_ca, "holds no certificate");
  OverwriteFile(files_.tls_client_ca,
                authority_.certificate() +
                    authority_.certificate().substr(0, 200) + "\n");
  expect_kept(files_.tls_client_ca, "can't be parsed");
  EXPECT_THAT(log_.lines(), SizeIs(4));
}

TEST_F(CertificateWatchTest, WhatMayNeverEndIsNotRead) {
  const std::string pipe = (*folder_)->path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string huge = (*folder_)->path() + "/huge";
  std::ofstream(huge) << "-----BEGIN CERTIFICATE-----\n";
  ASSERT_EQ(truncate(huge.c_str(), 1'500'000'000), 0);
  for (const std::string& file : {pipe, huge, std::string("/dev/zero")}) {
    CertificateFiles files = files_;
    files.tls_certificate = file;
    const absl::Status status = LoadCertificates(files).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }
}

TEST_F(CertificateWatchTest, AValidCertificateIsNotReplacedByAnInvalidOne) {
  const IssuedCertificate tomorrows =
      authority_.Issue({.not_before = now_ + absl::Hours(24),
                        .not_after = now_ + absl::Hours(24 * 60)});
  const auto watch = Start();
  Write(tomorrows);
  Look(*watch);
  EXPECT_EQ(Served(*watch), first_.certificate);
  EXPECT_THAT(log_.lines(), ElementsAre(HasSubstr("is valid from")));
  watch->Look(now_ + absl::Hours(25));
  EXPECT_EQ(Served(*watch), tomorrows.certificate);
}

TEST_F(CertificateWatchTest, ExpiryIsToldOnceADayFromFourteenDaysBefore) {
  const absl::Duration day = absl::Hours(24);
  Write(authority_.Issue({.not_after = now_ + 20 * day}));
  const auto watch = Start();
  for (int day_now = 0; day_now < 6; ++day_now) {
    watch->Look(now_ + day_now * day);
  }
  EXPECT_THAT(log_.lines(), IsEmpty());
  for (int hour = 0; hour < 48; ++hour) {
    watch->Look(now_ + 7 * day + absl::Hours(hour));
  }
  EXPECT_THAT(log_.lines(), ElementsAre(AllOf(HasSubstr("expires soon"),
                                              HasSubstr("not_after=20")),
                                        HasSubstr("expires soon")));
  watch->Look(now_ + 21 * day);
  EXPECT_THAT(log_.lines().back(), HasSubstr("not valid"));
  Write(authority_.Issue({.not_after = now_ + 90 * day}));
  watch->Look(now_ + 21 * day);
  watch->Look(now_ + 21 * day);
  EXPECT_THAT(log_.lines().back(), HasSubstr("are in use"));
}

TEST_F(CertificateWatchTest, TheFirstOfAChainToExpireCounts) {
  const absl::Time soon = absl::FromTimeT(absl::ToTimeT(now_)) + absl::Hours(2);
  const IssuedCertificate intermediate = authority_.Issue({.not_after = soon});
  ReplaceFile(files_.tls_certificate,
              first_.certificate + intermediate.certificate);
  EXPECT_EQ(Start()->current()->not_after, soon);
}

TEST_F(CertificateWatchTest, ErrorsNameTheFlagAndTheFile) {
  ReplaceFile(files_.tls_key, second_.key);
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("--tls_key: " + files_.tls_key),
                                 HasSubstr("is not the key"),
                                 HasSubstr(files_.tls_certificate)));
  ReplaceFile(files_.tls_key, first_.certificate);
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("--tls_key: " + files_.tls_key),
                                 HasSubstr("no private key")));
  // No question for a passphrase, which would stop the server.
  ReplaceFile(files_.tls_key,
              "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
              "MIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBA6\n"
              "-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(LoadError(), HasSubstr("passphrase"));
  files_.tls_key = (*folder_)->path();
  EXPECT_THAT(LoadError(), HasSubstr("can't be read"));
  ReplaceFile(files_.tls_certificate, first_.key);
  files_.tls_key = (*folder_)->path() + "/server.key";
  EXPECT_THAT(LoadError(),
              AllOf(HasSubstr("--tls_certificate: " + files_.tls_certificate),
                    HasSubstr("holds no certificate")));
}

}  // namespace
}  // namespace idempotency
