// eplbd's command line.
#ifndef EPLB_SERVER_OPTIONS_H_
#define EPLB_SERVER_OPTIONS_H_

#include <optional>
#include <string>

#include "server/config.h"

namespace eplb {

struct Options {
  ConfigSources sources;          // file and flags; the environment is the caller's
  bool check_config = false;      // read the configuration, say what is wrong, do nothing else
  bool print_config = false;      // read the configuration, print it, do nothing else
  bool insecure_network = false;  // listen off loopback without encryption
};

struct ParsedOptions {
  std::optional<Options> options;  // none: `exit_code` is all there is to do
  int exit_code = 0;
  std::string stdout_text = {};
  std::string stderr_text = {};
};

// version: the text of --version, without a newline.
ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version);

}  // namespace eplb

#endif  // EPLB_SERVER_OPTIONS_H_
