// Rows in host memory: pieces are copied into the receiver's mapped arena and announced (kLanded),
// or sent on the connection (kPiece), where the receiver reads them into its own staging at the
// place its own list says.
#ifndef EPLB_CLIENT_MIGRATION_HOST_PATH_H_
#define EPLB_CLIENT_MIGRATION_HOST_PATH_H_

#include <map>
#include <memory>

#include "client/migration/row_path.h"
#include "client/migration/staging.h"
#include "placement/ids.h"

namespace eplb {

// mapped: the arenas of the peers that share theirs.
std::unique_ptr<RowPath> MakeHostPath(StagingArena own, std::map<RankId, StagingArena> mapped);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_HOST_PATH_H_
