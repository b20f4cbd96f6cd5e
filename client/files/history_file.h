// The log that each rank keeps of what it did, for the validator of the protocol's promises.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_HISTORY_FILE_H_
#define EPLB_CLIENT_FILES_HISTORY_FILE_H_

#include <string>

#include "absl/status/statusor.h"

#include "placement/history.h"

namespace eplb {

// JSON lines: {"event":"start|ready|vote|commit|drop|steps|stop","rank":R,"incarnation":"..",
// "step":S, "last_step":T (steps), "version":V,"digest":"hex" (all but stop), "ok":bool (vote)};
// other keys, e.g. a reason, are ignored. A last line that was cut off by a dying process is left
// out. errors, beginning with the path and naming the line: NotFound; InvalidArgument for any other
// line that is not such a record, another rank's record, or a file without one.
absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_HISTORY_FILE_H_
