// Help about the configuration, from the table by which eplbd reads it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace eplb {

// Every key with its variable, what it does, what is expected and the default, in lines of at most
// 80 columns.
std::string ConfigHelp();

// The manual page in roff, for section 8. version: as --version; flags: each with what it does.
std::string ManualPage(const std::string& version,
                       const std::vector<std::pair<std::string, std::string>>& flags);

}  // namespace eplb
