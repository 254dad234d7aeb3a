// What `cmake --install` leaves is enough for a program elsewhere, with CMake
// and without, and has no need of the tree it was built in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/port.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/temp_postgres.h"

namespace idempotency {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

struct Ended {
  int code = -1;
  std::string output;
};

Ended RunToEnd(std::vector<std::string> command,
               std::vector<std::string> environment) {
  const std::string program = command.front();
  command.erase(command.begin());
  const auto process =
      ServerProcess::Start({.program = program,
                            .arguments = std::move(command),
                            .environment = std::move(environment),
                            .output_file = {}});
  if (!process.ok()) return {-1, process.status().ToString()};
  const auto exit = (*process)->WaitForExit(seconds(500));
  if (!exit.ok()) return {-1, exit.status().ToString()};
  return {exit->code, (*process)->Output()};
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> NamesIn(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Whether the text names that folder, and not one that only ends or goes on
// like it: "${includedir}/idempotency" is not "/idempotency".
bool Names(const std::string& text, const std::string& folder) {
  const auto goes_on = [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-.}>", c);
  };
  for (std::size_t at = text.find(folder); at != std::string::npos;
       at = text.find(folder, at + 1)) {
    const std::size_t end = at + folder.size();
    if ((at == 0 || !goes_on(text[at - 1])) &&
        (end == text.size() || !goes_on(text[end]))) {
      return true;
    }
  }
  return false;
}

class PackageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto made = TempFolder::Make();
    ASSERT_TRUE(made.ok()) << made.status();
    folder_ = *std::move(made);
    const fs::path staging = Folder() / "staging";
    const Ended installed =
        RunToEnd({CMAKE_PROGRAM, "--install", IDEMPOTENCY_BUILD_FOLDER,
                  "--prefix", staging.string()},
                 {});
    ASSERT_EQ(installed.code, 0) << installed.output;
    // An installed tree may be moved.
    fs::rename(staging, Prefix());
  }
  static void TearDownTestSuite() {
    server_ = nullptr;
    folder_ = nullptr;
  }

  static fs::path Folder() { return folder_->path(); }
  static fs::path Prefix() { return Folder() / "prefix"; }

  // An otherwise empty folder with the two files of that user.
  static fs::path UserFolder(const std::string& name,
                             const std::string& user = "user") {
    const fs::path folder = Folder() / name;
    fs::copy(fs::path(IDEMPOTENCY_SOURCE_FOLDER) / "tests/package" / user,
             folder);
    return folder;
  }

  // Runs a command line with the package in the sight of CMake and pkg-config,
  // and the build's compiler as $CXX. ccache, if the build has it, is told that
  // the name of the temporary folder does not matter.
  static Ended Shell(const std::string& command) {
    return RunToEnd(
        {"/bin/sh", "-c", command},
        {absl::StrCat("CMAKE_PREFIX_PATH=", Prefix().string()),
         absl::StrCat("PKG_CONFIG_PATH=",
                      (Prefix() / INSTALL_LIBDIR / "pkgconfig").string()),
         "CXX=" CXX_PROGRAM, "LAUNCHER=" CXX_LAUNCHER,
         "CMAKE_CXX_COMPILER_LAUNCHER=" CXX_LAUNCHER,
         absl::StrCat("CCACHE_BASEDIR=", Folder().string())});
  }

  static Ended Build(const fs::path& folder,
                     const std::string& configuration = "") {
    return Shell(absl::StrCat("cd ", folder.string(), " && ", configuration,
                              " " CMAKE_PROGRAM " -S . -B build -G Ninja"
                              " && " CMAKE_PROGRAM " --build build"));
  }

  // Run the users' programs against the installed server.
  static void ExpectItCharges(const fs::path& shop, const std::string& key) {
    ASSERT_NO_FATAL_FAILURE(StartServer());
    ExpectItSays({shop.string(), Target(), key}, "charged once\n");
  }
  static void ExpectItOrders(const fs::path& orders, const std::string& key) {
    ASSERT_NO_FATAL_FAILURE(StartServer());
    ExpectItSays({orders.string(), database_, Target(), key}, "ordered once\n");
  }

 private:
  static std::string Target() { return absl::StrCat("127.0.0.1:", port_); }

  static void ExpectItSays(const std::vector<std::string>& command,
                           const std::string& output) {
    const Ended ended = RunToEnd(command, {});
    EXPECT_EQ(ended.code, 0);
    EXPECT_EQ(ended.output, output);
  }

  static void StartServer() {
    if (server_ != nullptr) return;
    const auto database = TempPostgres::SharedDatabase();
    ASSERT_TRUE(database.ok()) << database.status();
    database_ = *database;
    port_ = FreePort();
    auto started = ServerProcess::Start(
        {.program = (Prefix() / "bin/idempotency-server").string(),
         .arguments = {absl::StrCat("--listen=127.0.0.1:", port_),
                       absl::StrCat("--database=", database_), "--migrate"},
         .environment = {},
         .output_file = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    const auto serving = server_->WaitForLine("serving: the database answers");
    ASSERT_TRUE(serving.ok()) << serving.status();
  }

  static std::unique_ptr<TempFolder> folder_;
  static std::unique_ptr<ServerProcess> server_;
  static std::string database_;
  static int port_;
};

std::unique_ptr<TempFolder> PackageTest::folder_;
std::unique_ptr<ServerProcess> PackageTest::server_;
std::string PackageTest::database_;
int PackageTest::port_ = 0;

TEST_F(PackageTest, HoldsServerSchemaContractAndClient) {
  EXPECT_THAT(NamesIn(Prefix() / "bin"),
              UnorderedElementsAre("idempotency-proxy", "idempotency-server"));
  EXPECT_EQ(ReadFile(Prefix() / "share/idempotency/proto/idempotency/v1/"
                                "idempotency.proto"),
            ReadFile(IDEMPOTENCY_SOURCE_FOLDER "/proto/idempotency/v1/"
                                               "idempotency.proto"));
  EXPECT_EQ(NamesIn(Prefix() / "share/idempotency/migrations"),
            NamesIn(IDEMPOTENCY_SOURCE_FOLDER "/migrations"));
}

TEST_F(PackageTest, TakesNoNameInTheIncludeFolderButItsOwn) {
  EXPECT_THAT(NamesIn(Prefix() / "include"),
              UnorderedElementsAre("idempotency"));
  EXPECT_THAT(NamesIn(Prefix() / "include/idempotency"),
              UnorderedElementsAre("client", "third_party", "v1"));
}

// What the server is made of is nobody's to include or to link by itself.
TEST_F(PackageTest, TheServersHeadersAndLibrariesStayAtHome) {
  EXPECT_THAT(NamesIn(Prefix() / "include/idempotency/client/transaction"),
              UnorderedElementsAre("once_in_transaction.h"));
  std::set<std::string> archives = NamesIn(Prefix() / INSTALL_LIBDIR);
  archives.erase("cmake");
  archives.erase("pkgconfig");
  EXPECT_THAT(archives, UnorderedElementsAre(
                            "libidempotency_client.a", "libidempotency_grpc.a",
                            "libidempotency_http.a", "libidempotency_proto.a",
                            "libidempotency_transaction.a"));
}

TEST_F(PackageTest, NamesNoFolderItWasBuiltFrom) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Prefix())) {
    const fs::path& path = entry.path();
    // Programs and archives name their sources for debuggers.
    if (!entry.is_regular_file() || path.extension() == ".a" ||
        path.parent_path() == Prefix() / "bin") {
      continue;
    }
    ++files;
    const std::string text = ReadFile(path);
    for (const std::string folder :
         {IDEMPOTENCY_SOURCE_FOLDER, IDEMPOTENCY_BUILD_FOLDER}) {
      EXPECT_FALSE(Names(text, folder)) << path << " names " << folder;
    }
    EXPECT_FALSE(absl::StrContains(text, Folder().string())) << path;
    EXPECT_FALSE(absl::StrContains(text, "include \"client/")) << path;
  }
  EXPECT_GT(files, 15);
  EXPECT_TRUE(Names("add(/src/idempotency/client)", "/src/idempotency"));
}

TEST_F(PackageTest, TheServerLooksForLibrariesWhereTheSystemDoes) {
  const Ended dynamic = Shell(absl::StrCat(
      "readelf --dynamic ", (Prefix() / "bin/idempotency-server").string()));
  EXPECT_EQ(dynamic.code, 0) << dynamic.output;
  EXPECT_THAT(dynamic.output, HasSubstr("NEEDED"));
  EXPECT_THAT(dynamic.output, Not(HasSubstr("PATH")));
}

// Each header by itself, and all of them together.
TEST_F(PackageTest, EveryHeaderCompilesAloneAndBesideTheOthers) {
  const fs::path sources = Folder() / "headers";
  fs::create_directory(sources);
  std::ofstream all(sources / "all.cc");
  for (const std::string folder :
       {"idempotency/client", "idempotency/client/http",
        "idempotency/client/grpc", "idempotency/client/transaction",
        "idempotency/v1"}) {
    for (const std::string& name : NamesIn(Prefix() / "include" / folder)) {
      if (!absl::EndsWith(name, ".h")) continue;
      const std::string line =
          absl::StrCat("#include \"", folder, "/", name, "\"\n");
      all << line;
      std::ofstream(sources / absl::StrCat(name, ".cc")) << line;
    }
  }
  all.close();
  ASSERT_GT(NamesIn(sources).size(), 14u);
  // Two at a time.
  const Ended compiled = Shell(absl::StrCat(
      "cd ", sources.string(),
      " && flags=$(pkg-config --cflags idempotency) &&"
      " ls | xargs -n 1 -P 2 $LAUNCHER $CXX -std=c++20 -Wall -Wextra -Werror"
      " $flags -c"));
  EXPECT_EQ(compiled.code, 0) << compiled.output;
}

TEST_F(PackageTest, AProgramIsBuiltByFindPackage) {
  const fs::path folder = UserFolder("with_cmake");
  const Ended built = Build(folder);
  ASSERT_EQ(built.code, 0) << built.output;
  ExpectItCharges(folder / "build/shop", "with_cmake");
}

TEST_F(PackageTest, AProgramIsBuiltByPkgConfig) {
  const fs::path folder = UserFolder("with_pkg_config");
  fs::remove(folder / "CMakeLists.txt");
  const Ended built = Shell(
      absl::StrCat("cd ", folder.string(),
                   " && $LAUNCHER $CXX -std=c++20 -c main.cc"
                   " $(pkg-config --cflags idempotency)"
                   " && $CXX main.o -o shop $(pkg-config --libs idempotency)"));
  ASSERT_EQ(built.code, 0) << built.output;
  ExpectItCharges(folder / "shop", "with_pkg_config");
}

TEST_F(PackageTest, ATransactionsProgramIsBuiltByFindPackage) {
  const fs::path folder = UserFolder("orders_with_cmake", "transaction_user");
  const Ended built = Build(folder);
  ASSERT_EQ(built.code, 0) << built.output;
  ExpectItOrders(folder / "build/orders", "orders_with_cmake");
}

// And a shared library of the same, which needs code that may lie anywhere.
TEST_F(PackageTest, ATransactionsProgramIsBuiltByPkgConfig) {
  const fs::path folder =
      UserFolder("orders_with_pkg_config", "transaction_user");
  fs::remove(folder / "CMakeLists.txt");
  const Ended built = Shell(
      absl::StrCat("cd ", folder.string(),
                   " && libs=$(pkg-config --libs idempotency-transaction)"
                   " && $LAUNCHER $CXX -std=c++20 -fPIC -c main.cc"
                   " $(pkg-config --cflags idempotency-transaction)"
                   " && $CXX -shared -Wl,-z,defs main.o -o liborders.so $libs"
                   " && $CXX main.o -o orders $libs"));
  ASSERT_EQ(built.code, 0) << built.output;
  ExpectItOrders(folder / "orders", "orders_with_pkg_config");
}

// With no .pc files but the package's own in sight.
TEST_F(PackageTest, WithoutLibpqxxOnlyTheTransactionIsNotFound) {
  const std::string without_libpqxx = "PKG_CONFIG_LIBDIR=/nonexistent";
  const Ended refused =
      Build(UserFolder("orders_without_libpqxx", "transaction_user"),
            without_libpqxx);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.output,
              HasSubstr("transaction needs pkg-config, libpqxx"));

  const fs::path folder = Folder() / "optional_transaction";
  fs::create_directory(folder);
  std::ofstream(folder / "CMakeLists.txt")
      << "cmake_minimum_required(VERSION 3.22)\n"
         "project(optional_transaction LANGUAGES CXX)\n"
         "find_package(idempotency REQUIRED COMPONENTS http\n"
         "             OPTIONAL_COMPONENTS transaction)\n"
         "if(NOT TARGET idempotency::http OR idempotency_transaction_FOUND)\n"
         "  message(FATAL_ERROR \"found otherwise\")\n"
         "endif()\n";
  const Ended configured = Build(folder, without_libpqxx);
  EXPECT_EQ(configured.code, 0) << configured.output;
}

TEST_F(PackageTest, AVersionThatIsNotInstalledIsNotFound) {
  const fs::path folder = UserFolder("of_tomorrow");
  std::ofstream(folder / "CMakeLists.txt")
      << "cmake_minimum_required(VERSION 3.22)\n"
         "project(of_tomorrow LANGUAGES CXX)\n"
         "find_package(idempotency 99 REQUIRED)\n";
  const Ended configured = Shell(absl::StrCat(
      "cd ", folder.string(), " && " CMAKE_PROGRAM " -S . -B build -G Ninja"));
  EXPECT_NE(configured.code, 0);
  EXPECT_THAT(configured.output, HasSubstr("version: 0."));
}

}  // namespace
}  // namespace idempotency
