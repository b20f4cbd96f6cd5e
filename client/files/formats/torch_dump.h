// Files of torch.save, which only Python can read: they are pickles.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_TORCH_DUMP_H_
#define EPLB_CLIENT_FILES_FORMATS_TORCH_DUMP_H_

#include <string_view>

#include "absl/status/status.h"

namespace eplb {

// A zip whose first member is */data.pkl, or a bare pickle as old versions wrote.
bool IsTorchDump(std::string_view bytes);

// InvalidArgument that says what reads them.
absl::Status TorchDumpError();

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_TORCH_DUMP_H_
