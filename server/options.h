// The command line of eplbd.
#pragma once

#include <optional>
#include <string>

#include "server/config/config.h"

namespace eplb {

struct Options {
  ConfigSources sources;          // file and flags; the caller adds the environment
  bool check_config = false;      // read the configuration and report errors
  bool print_config = false;      // read the configuration and print it
  bool insecure_network = false;  // listen off loopback without encryption
};

struct ParsedOptions {
  std::optional<Options> options;  // absent: print the texts and exit with `exit_code`
  int exit_code = 0;
  std::string stdout_text = {};
  std::string stderr_text = {};
};

// version: the text of --version, without a newline.
ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version);

}  // namespace eplb
