// A request's path and query as the daemon's HTTP library takes them apart.
#ifndef EPLB_TESTS_FUZZ_URL_PARTS_H_
#define EPLB_TESTS_FUZZ_URL_PARTS_H_

#include <map>
#include <string>

namespace eplb::fuzz {

struct UrlParts {
  std::string path;
  std::multimap<std::string, std::string> query;
};

UrlParts SplitUrl(const std::string& url);

}  // namespace eplb::fuzz

#endif  // EPLB_TESTS_FUZZ_URL_PARTS_H_
