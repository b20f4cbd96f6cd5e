// Rows between GPUs of one host: the copy engine writes them into the peer's staging, which is
// mapped here (CUDA IPC), and no multiprocessor is used but for the checksums. NVLink where there
// is one.
#ifndef EPLB_CLIENT_MIGRATION_PEER_PATH_H_
#define EPLB_CLIENT_MIGRATION_PEER_PATH_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "client/migration/row_path.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

struct PeerPathParts {
  std::shared_ptr<void> owner;                    // of the memory behind the spans
  std::span<std::byte> staging;                   // this rank's
  std::map<RankId, std::span<std::byte>> mapped;  // the peers', here
  std::unique_ptr<cuda::RowQueue> queue;          // goes first: its copies use the memory
};

// Every rank that rows go to must be mapped.
std::unique_ptr<RowPath> MakePeerPath(PeerPathParts parts);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_PEER_PATH_H_
