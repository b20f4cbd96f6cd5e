// `eplbctl convert`: a placement file of one system becomes one of another.
#ifndef EPLB_CLIENT_CLI_CONVERT_H_
#define EPLB_CLIENT_CLI_CONVERT_H_

#include <string>
#include <vector>

#include "client/cli/flags.h"
#include "client/cli/formats/conversion.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

// The names for --from and --to.
std::vector<std::string> ConvertFormatNames();

// Reads IN, writes OUT, and says on stderr what was lost or assumed; nothing on stdout. Exit 2 for
// files and flags that do not do, with OUT as it was; 1 when OUT cannot be written.
Output RunConvert(const ConversionOptions& options);

void AddConvert(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_CONVERT_H_
