// The tokens that a rank counts: the windows that it reports, and the notice that it counts none.
#pragma once

#include <cstdint>
#include <optional>

#include "client/session/load_windows.h"
#include "client/session/log_line.h"
#include "client/session/token_watch.h"
#include "proto/wire/messages.h"

namespace eplb {

struct TokenCounts {
  // Ends the counts of a step. Returns the load window if it ends here and this rank reports it.
  std::optional<wire::LoadReport> EndStep(int64_t step, bool reports) {
    const int32_t whole = windows.report_every();  // length of the window that may end
    std::optional<wire::LoadReport> window = windows.EndStep(step);
    if (!reports) return std::nullopt;
    if (!window) return window;
    const bool is_whole = window->last_step - window->first_step + 1 >= whole;
    if (watch.EndWindow(*window, is_whole)) watch_log.Log(watch.reason());
    return window;
  }

  LoadWindows windows;
  TokenWatch watch = {};  // watches nothing unless this rank reports to a daemon
  LogOnce watch_log = {};
};

}  // namespace eplb
