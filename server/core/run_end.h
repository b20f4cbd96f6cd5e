// How a run ended, as it is shown and stored.
#ifndef EPLB_SERVER_CORE_RUN_END_H_
#define EPLB_SERVER_CORE_RUN_END_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace eplb::core {

enum class RunEnding {
  kFinished,  // every rank said so
  kFailed,    // a rank said that it failed
  kLost,      // a rank was away too long; the run goes on when all its ranks are back
};
inline constexpr std::string_view kRunEndingNames[] = {"finished", "failed", "lost"};

inline std::string_view RunEndingName(RunEnding how) {
  return kRunEndingNames[static_cast<size_t>(how)];
}

inline std::optional<RunEnding> RunEndingOf(std::string_view name) {
  for (const RunEnding how : {RunEnding::kFinished, RunEnding::kFailed, RunEnding::kLost}) {
    if (RunEndingName(how) == name) return how;
  }
  return std::nullopt;
}

struct RunEnd {
  RunEnding how = RunEnding::kFinished;
  std::string reason;  // one sentence, which names the rank that was lost or failed first
  absl::Time at = absl::UnixEpoch();
  std::string incarnation;
  int32_t world_size = 0;
  int64_t step = 0;  // highest step of any rank

  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_RUN_END_H_
