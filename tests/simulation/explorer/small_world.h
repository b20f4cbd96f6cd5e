// The smallest job in which everything of the protocol can happen: three ranks, two layers, and a
// decision of two chunks. Shared by the explorer's parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "client/session/member.h"
#include "placement/placement.h"
#include "server/core/core.h"

namespace eplb::explorer {

inline constexpr int kRanks = 3;
// Session numbers of Hellos: of a stream after which the process opened none that was heard, and of
// an older one.
inline constexpr int64_t kNewestSession = 2;
inline constexpr int64_t kOlderSession = 1;
inline constexpr int kRuns = 2;
inline constexpr char kJob[] = "j";

// Term and version to which an earlier daemon, whose store is lost, had led these ranks.
inline constexpr int64_t kEarlierTerm = 3;
inline constexpr int64_t kStartVersion = 2;
inline constexpr int64_t kEarlierHighestVersion = 4;

// The clock does not go on: a deadline passes when a Tick says so. Every event but these two comes
// at kNow.
inline constexpr absl::Time kNow = absl::UnixEpoch();
inline const absl::Time kBetween = kNow + absl::Seconds(500);  // for what is due when they pass
inline const absl::Time kAfterDeadlines = kNow + absl::Seconds(700);
inline const absl::Time kAfterGrace = kNow + absl::Hours(10);

// 2 layers, 4 experts on 4 slots of 3 GPUs; GPU 0 holds slots 0 and 1.
const Topology& SmallTopology();
// The placement that the ranks start with: the static layout.
const Placement& StartPlacement();
// Deadlines that pass at kAfterDeadlines, a grace that passes at kAfterGrace; one layer a chunk;
// one rank's report makes a window.
core::Config SmallConfig();
std::string RunName(int run);
// Returns the Hello of rank 0. The explorer writes rank, GPU, run and nonce when the message is
// sent.
wire::Hello SmallIdentity();
MemberOptions SmallMemberOptions();
// Experts 0 and 1, both on GPU 0 at first, have most tokens.
wire::LoadReport SmallReport();

// Returns the answer of a policy: `running` with the experts 1 and 2 exchanged in as many layers as
// may still change, lowest first; none if no layer is left.
std::optional<Placement> Better(const Placement& running, int max_layers);

}  // namespace eplb::explorer
