#include "tests/cuda/nccl_world.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace eplb::cuda::testing {
namespace {

// One of the functions that only the stand-in has.
template <class Function>
Function* FakeFunction(const char* name) {
  void* library = dlopen(FakeNccl().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

const NcclLibrary& FakeNccl() {
  static const absl::StatusOr<const NcclLibrary*> library = NcclLibrary::Load(EPLB_FAKE_NCCL);
  EXPECT_TRUE(library.ok()) << library.status();
  return **library;
}

std::string FakeLog() { return FakeFunction<decltype(fakeNcclGetLog)>("fakeNcclGetLog")(); }

std::string TakeFakeViolations() {
  return FakeFunction<decltype(fakeNcclTakeViolations)>("fakeNcclTakeViolations")();
}

void SetFakeFaults(const char* text) {
  EXPECT_EQ(FakeFunction<decltype(fakeNcclSetFaults)>("fakeNcclSetFaults")(text), 0);
}

std::vector<absl::Status> WaitForAll(const Communicators& communicators, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::vector<absl::Status> results;
  results.reserve(communicators.size());
  for (const auto& communicator : communicators) {
    results.push_back(WaitUntilReady(*communicator, deadline - absl::Now()));
  }
  return results;
}

Communicators ConnectRanks(int32_t num_ranks, NcclOptions options) {
  const auto id = MakeNcclId(FakeNccl());
  EXPECT_TRUE(id.ok()) << id.status();
  options.num_ranks = num_ranks;
  Communicators communicators;
  for (options.rank = 0; options.rank < num_ranks; ++options.rank) {
    auto begun = NcclCommunicator::Begin(FakeNccl(), *id, options);
    EXPECT_TRUE(begun.ok()) << begun.status();
    communicators.push_back(*std::move(begun));
  }
  for (const absl::Status& connected : WaitForAll(communicators)) {
    EXPECT_TRUE(connected.ok()) << connected;
  }
  return communicators;
}

absl::Status GoRoundTheRing(NcclCommunicator& communicator, int32_t rank, int32_t num_ranks,
                            int32_t number) {
  const int32_t next = (rank + 1) % num_ranks;
  const int32_t before = (rank + num_ranks - 1) % num_ranks;
  for (int32_t i = 0; i < number; ++i) {
    const size_t size = 1 + static_cast<size_t>(i) * 50021;  // beyond what a socket keeps
    const Bytes sent = RowOf(rank, next, i, size);
    Bytes received(size);
    EPLB_RETURN_IF_ERROR(communicator.SendReceive(NcclSend{next, sent},
                                                  NcclReceive{before, received},
                                                  /*stream=*/nullptr));
    if (absl::Status done = WaitUntilReady(communicator); !done.ok()) {
      (void)communicator.Abort();  // before the row goes
      return done;
    }
    if (received != RowOf(before, rank, i, size)) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " has a wrong row ", i));
    }
  }
  return absl::OkStatus();
}

bool InChildProcess(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int result = -1;
  return child > 0 && waitpid(child, &result, 0) == child && result == 0;
}

}  // namespace eplb::cuda::testing
