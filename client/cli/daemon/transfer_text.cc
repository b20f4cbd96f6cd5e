#include "client/cli/daemon/transfer_text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

#include "client/cli/text.h"

namespace eplb::cli {

std::string TransferText(const Transfer& transfer) {
  return absl::StrCat(transfer.expert.value, " (GPU ", transfer.source.value, " -> ",
                      transfer.destination.value, ")");
}

std::string MoreTransfersText(size_t count) {
  if (count <= kTransfersShown) return "";
  return absl::StrCat("and ", Grouped(static_cast<int64_t>(count - kTransfersShown)),
                      " more (-o json lists all)");
}

}  // namespace eplb::cli
