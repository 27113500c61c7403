// A test of the same program in a process of its own, which may die as it likes: it is DISABLED_, and asks
// here for the folder and the seed that it was given.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::testing {

// Runs the tests of this filter and returns what waitpid() says of their end.
int run_test_in_child(const std::string& filter, uint32_t seed, const std::filesystem::path& folder);

// In the child.
uint32_t child_seed();
std::filesystem::path child_folder();

}  // namespace terrace::testing
