// Ranks over the stand-in for libnccl (tests/support/fake_nccl). Every wait has a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cuda/nccl_communicator.h"
#include "cuda/nccl_library.h"
#include "tests/cuda/nccl_wait.h"

namespace eplb::cuda::testing {

using Communicators = std::vector<std::unique_ptr<NcclCommunicator>>;

const NcclLibrary& FakeNccl();
std::string FakeLog();                           // log of the process so far
std::string TakeFakeViolations();                // the rules that were broken since the last call
void SetFakeFaults(const char* text = nullptr);  // for communicators that begin from now on

// Until each of them is ready or has failed, in their order.
std::vector<absl::Status> WaitForAll(const Communicators& communicators,
                                     absl::Duration patience = kPatience);

// All ranks, connected; of one thread. `options` for all but rank and number of ranks.
Communicators ConnectRanks(int32_t num_ranks, NcclOptions options = {});

// A row from `rank` to the next one and one from the rank before, `number` times; what came in must
// be what was sent. The first error ends it.
absl::Status GoRoundTheRing(NcclCommunicator& communicator, int32_t rank, int32_t num_ranks,
                            int32_t number);

// In a child of fork(), so that what it loads and sets is gone afterwards: whether `body` said
// true.
bool InChildProcess(const std::function<bool()>& body);

}  // namespace eplb::cuda::testing
