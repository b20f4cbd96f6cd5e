// A chunk whose rows move beside the steps (ClientOptions::ahead), from the vote that agreed on it
// to the next.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/executor.h"
#include "client/rows/staging_thread.h"
#include "client/session/member.h"

namespace eplb {

struct AheadStaging {
  struct Chunk {
    Executor& executor;
    std::shared_ptr<const Proposal> proposal;
    std::string_view transport = {};  // transport before the thread had the executor
    // Result of the staging. No value while the thread has the executor.
    std::optional<absl::StatusOr<Executor::Staged>> staged = {};
    absl::Time joined = {};  // MonotonicNow()
  };

  // True while the thread has the executor.
  bool Runs() const { return chunk.has_value() && !chunk->staged.has_value(); }
  // Gives the executor to the thread. An error becomes the result of the staging.
  void Begin(Executor& executor, std::shared_ptr<const Proposal> proposal,
             const Executor::StageOptions& options);
  // Waits for the thread, if it has the executor.
  void Join();
  // Ends what is staged, so that the next vote drops it. Does nothing without a chunk.
  void Stop(std::string_view why);

  std::unique_ptr<StagingThread> thread = {};  // null unless rows are staged ahead
  std::optional<Chunk> chunk = {};
  bool promise_broken = false;  // rows of this rank changed while they were staged
  std::string note = {};        // reason why rows are not staged ahead, although they should be
};

}  // namespace eplb
