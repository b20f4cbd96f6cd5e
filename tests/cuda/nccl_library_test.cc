#include "cuda/nccl_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "cuda/nccl_communicator.h"
#include "tests/cuda/nccl_world.h"

namespace eplb::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string WhyNot(const std::string& path) {
  const auto library = NcclLibrary::Load(path);
  EXPECT_EQ(library.status().code(), absl::StatusCode::kFailedPrecondition);
  return std::string(library.status().message());
}

TEST(NcclLibraryTest, MissingFileIsOneLineWithItsPath) {
  EXPECT_THAT(WhyNot("/nowhere/libnccl.so.2"),
              AllOf(HasSubstr("no NCCL: the given path: /nowhere/libnccl.so.2: "),
                    HasSubstr("No such file"), Not(HasSubstr("\n"))));
}

TEST(NcclLibraryTest, AnotherLibraryIsRefusedByTheFirstSymbolThatItLacks) {
  EXPECT_THAT(WhyNot("libm.so.6"), HasSubstr("libm.so.6 has no symbol ncclGetVersion"));
}

// A copy that no test has loaded before.
std::string CopyOfFake(const std::string& name) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::create_directories(file.parent_path());
  std::filesystem::copy_file(EPLB_FAKE_NCCL, file,
                             std::filesystem::copy_options::overwrite_existing);
  return file.string();
}

TEST(NcclLibraryTest, VersionsThatDoNotFitAreRefused) {
  const std::string file = CopyOfFake("versions_nccl.so");
  EXPECT_TRUE(testing::InChildProcess([&] {
    setenv("EPLB_FAKE_NCCL_VERSION", "21705", 1);
    EXPECT_THAT(WhyNot(file), HasSubstr("is version 2.17.5, older than 2.18.0"));
    setenv("EPLB_FAKE_NCCL_VERSION", "2708", 1);
    EXPECT_THAT(WhyNot(file), HasSubstr("is version 2.7.8, older than 2.18.0"));
    setenv("EPLB_FAKE_NCCL_VERSION", "30001", 1);
    EXPECT_THAT(WhyNot(file),
                HasSubstr("is version 3.0.1, and its interface is only known up to version 2"));
    setenv("EPLB_FAKE_NCCL_VERSION", "23104", 1);
    const auto newer = NcclLibrary::Load(file);
    EXPECT_TRUE(newer.ok() && (*newer)->version_text() == "2.31.4");
    return !::testing::Test::HasFailure();
  }));
}

TEST(NcclLibraryTest, OldVersionsHaveNoMemoryToRegister) {
  const std::string file = CopyOfFake("old_nccl.so");
  EXPECT_TRUE(testing::InChildProcess([&] {
    setenv("EPLB_FAKE_NCCL_VERSION", "21805", 1);
    const auto old = NcclLibrary::Load(file);
    EXPECT_TRUE(old.ok() && (*old)->functions().ncclCommRegister == nullptr);
    EXPECT_TRUE(old.ok() && absl::IsFailedPrecondition(AllocateByNccl(**old, 0, 64).status()));
    return !::testing::Test::HasFailure();
  }));
  EXPECT_NE(testing::FakeNccl().functions().ncclCommRegister, nullptr);
}

TEST(NcclLibraryTest, LibraryThatCannotTellItsVersionIsRefused) {
  const std::string file = CopyOfFake("silent_nccl.so");
  EXPECT_TRUE(testing::InChildProcess([&] {
    setenv("EPLB_FAKE_NCCL_FAULTS", "kind=sulk", 1);
    EXPECT_THAT(WhyNot(file), HasSubstr("ncclGetVersion failed: invalid argument"));
    return !::testing::Test::HasFailure();
  }));
}

TEST(NcclLibraryTest, TheSameFileIsTheSameLibrary) {
  const auto again = NcclLibrary::Load(EPLB_FAKE_NCCL);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, &testing::FakeNccl());
  EXPECT_EQ((*again)->path(), EPLB_FAKE_NCCL);
}

TEST(NcclLibraryTest, VariableNamesTheFile) {
  EXPECT_TRUE(testing::InChildProcess([] {
    setenv("EPLB_NCCL_PATH", EPLB_FAKE_NCCL, 1);
    const auto library = NcclLibrary::Load();
    return library.ok() && (*library)->path() == EPLB_FAKE_NCCL && (*library)->note().empty();
  }));
}

TEST(NcclLibraryTest, VariableThatNamesNoLibraryIsAnErrorAndNothingElseIsTaken) {
  EXPECT_TRUE(testing::InChildProcess([] {
    setenv("EPLB_NCCL_PATH", "/nowhere/libnccl.so.2", 1);
    const absl::Status status = NcclLibrary::Load().status();
    return absl::IsFailedPrecondition(status) &&
           absl::StrContains(status.message(),
                             "EPLB_NCCL_PATH: /nowhere/libnccl.so.2: cannot open");
  }));
}

TEST(NcclLibraryTest, LoadedOneComesBeforeTheVariable) {
  const std::string file = CopyOfFake("loaded_nccl/libnccl.so.2.99");
  EXPECT_TRUE(testing::InChildProcess([&] {
    setenv("EPLB_NCCL_PATH", EPLB_FAKE_NCCL, 1);
    if (dlopen(file.c_str(), RTLD_NOW) == nullptr) return false;
    const auto library = NcclLibrary::Load();
    return library.ok() && (*library)->path() == file &&
           (*library)->note() == absl::StrCat("EPLB_NCCL_PATH=", EPLB_FAKE_NCCL,
                                              " is not used: the process has loaded ", file,
                                              " already");
  }));
}

TEST(NcclLibraryTest, WheelIsFoundWherePythonWouldLook) {
  if (testing::InChildProcess([] { return dlopen("libnccl.so.2", RTLD_NOW) != nullptr; })) {
    GTEST_SKIP() << "the loader finds a libnccl.so.2 before";
  }
  const std::string folder = ::testing::TempDir() + "nccl_site-packages";
  const std::string file = CopyOfFake("nccl_site-packages/nvidia/nccl/lib/libnccl.so.2");
  EXPECT_TRUE(testing::InChildProcess([&] {
    unsetenv("EPLB_NCCL_PATH");
    setenv("PYTHONPATH", ("/nowhere:" + folder).c_str(), 1);
    const auto library = NcclLibrary::Load();
    return library.ok() && (*library)->path() == file;
  }));
}

// The library that lies by the header that we were compiled with.
class RealNcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(EPLB_REAL_NCCL)) GTEST_SKIP() << "no file " << EPLB_REAL_NCCL;
  }
};

TEST_F(RealNcclTest, HasTheVersionOfItsHeader) {
  EXPECT_TRUE(testing::InChildProcess([] {
    const auto library = NcclLibrary::Load(EPLB_REAL_NCCL);
    EXPECT_TRUE(library.ok()) << library.status();
    return library.ok() && (*library)->version() == NCCL_VERSION_CODE && MakeNcclId(**library).ok();
  }));
}

TEST_F(RealNcclTest, WithoutADeviceBeginSaysSoAndTheProcessGoesOn) {
  EXPECT_TRUE(testing::InChildProcess([] {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return true;  // tests/gpu does it
    const auto library = NcclLibrary::Load(EPLB_REAL_NCCL);
    const auto id = library.ok() ? MakeNcclId(**library) : library.status();
    if (!id.ok()) return false;
    const auto begun = NcclCommunicator::Begin(**library, *id, {.rank = 0, .num_ranks = 2});
    EXPECT_EQ(begun.status().code(), absl::StatusCode::kInternal) << begun.status();
    EXPECT_THAT(
        std::string(begun.status().message()),
        AllOf(HasSubstr("ncclCommInitRankConfig: unhandled cuda error"), Not(HasSubstr("\n"))));
    return !::testing::Test::HasFailure();
  }));
}

}  // namespace
}  // namespace eplb::cuda
