// One rank of the migration tests: a process whose experts lie on device 0 and are moved by a
// transport that the product chose and connected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace eplb {

struct MigrationJob {
  int32_t rank = 0;
  int32_t num_ranks = 2;
  uint16_t port = 0;  // port on which rank 0 listens
  std::string transport = "peer";
  bool use_ipc_handles = false;
  // Ranks that claim to share a host; 0: all do, by the kernel's boot_id.
  int32_t ranks_per_host = 0;
  bool on_device = true;  // false: in host memory, which needs no GPU
  // Kills itself in the second switch: once it has posted, or once some of its rows have left. The
  // others must then have a no to vote, the mapping of the first switch, and their end in time.
  int32_t killed_rank = -1;
  bool killed_midway = false;
};

// Ends of a process. A survivor may have had all its rows before the death: its slots are as they
// were all the same.
inline constexpr int kRankIsWell = 0;
inline constexpr int kRankFailed = 1;
inline constexpr int kRankHadAllRows = 3;

// A job as arguments of this program, and back; absent when they are not a job's.
std::vector<std::string> ToArguments(const MigrationJob& job);
std::optional<MigrationJob> MigrationJobFrom(int argc, char** argv);

// Switches a few times between random placements, or until a rank is killed. kRankIsWell when every
// slot held what it should after each switch, else kRankFailed and a line on stderr with the
// reason.
int RunMigrationRank(const MigrationJob& job);

}  // namespace eplb
