// Ranks in a sentence.
#ifndef EPLB_CLIENT_CLI_DAEMON_RANK_NAMES_H_
#define EPLB_CLIENT_CLI_DAEMON_RANK_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace eplb::cli {

// "rank 3", "ranks 0, 1"; with many "ranks 0, 1, .. and 12 more"; where they are all of the job's
// `of_all` and more than one "all 8 ranks". Empty for none.
std::string NameRanks(const std::vector<uint32_t>& ranks, size_t of_all);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_RANK_NAMES_H_
