// One rank of the GPU tests of NCCL: a process of its own, because NCCL takes two ranks of one
// device only for different hosts, and the name of the host is the process's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace eplb::cuda::testing {

enum class RankTask : int32_t {
  kRing,       // rows go round the ring and must arrive whole
  kDuplicate,  // NCCL must refuse the second rank on the device
  kLosePeer,   // rank 1 kills itself in a group; the others see it or their deadline, and abort
};

struct RankJob {
  RankTask task = RankTask::kRing;
  int32_t rank = 0;
  int32_t num_ranks = 1;
  std::string id_file;  // rank 0 writes NCCL's id there, the others wait for it
};

// A job as arguments of this program, and back; absent when they are not a job's.
std::vector<std::string> ToArguments(const RankJob& job);
std::optional<RankJob> FromArguments(int argc, char** argv);

// 0 when all went as the task says, else 1 and a line on stderr with the reason.
int RunRank(const RankJob& job);

}  // namespace eplb::cuda::testing
