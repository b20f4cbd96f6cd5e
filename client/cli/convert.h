// `eplbctl convert`: a placement file of one system becomes one of another.
#ifndef EPLB_CLIENT_CLI_CONVERT_H_
#define EPLB_CLIENT_CLI_CONVERT_H_

#include "client/cli/command_tree.h"
#include "client/cli/formats/conversion.h"

namespace eplb::cli {

// Reads IN, writes OUT, and reports on stderr what was lost or assumed; nothing on stdout. Exit 2
// for unusable files and flags, with OUT unchanged; 1 if OUT cannot be written.
Output RunConvert(const ConversionOptions& options);

void AddConvert(const Flags& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_CONVERT_H_
