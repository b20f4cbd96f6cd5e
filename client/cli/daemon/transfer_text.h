// Transfers between GPUs as words of a sentence. Tables are for people, who read some of them; JSON
// has them all.
#ifndef EPLB_CLIENT_CLI_DAEMON_TRANSFER_TEXT_H_
#define EPLB_CLIENT_CLI_DAEMON_TRANSFER_TEXT_H_

#include <cstddef>
#include <string>

#include "placement/migration_plan.h"

namespace eplb::cli {

inline constexpr size_t kTransfersShown = 40;

// "12 (GPU 0 -> 3)".
std::string TransferText(const Transfer& transfer);

// "and 1,234 more (-o json lists all)"; empty when all `count` are shown.
std::string MoreTransfersText(size_t count);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_TRANSFER_TEXT_H_
