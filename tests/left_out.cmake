# Records the tests that this configuration leaves out, with the reason. tests/summary.py prints them after a run.

# Version of torch that EPLB_PYTHON imports; empty if it has none.
execute_process(COMMAND ${EPLB_PYTHON} -c "import torch; print(torch.__version__)"
  OUTPUT_VARIABLE EPLB_TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)

# eplb_left_out("the tests of X: the reason")
function(eplb_left_out text)
  set_property(GLOBAL APPEND PROPERTY EPLB_LEFT_OUT "${text}")
endfunction()

# eplb_needs_torch(TEST..): ctest shows these tests as disabled if EPLB_PYTHON has no torch.
function(eplb_needs_torch)
  if(NOT EPLB_TORCH_VERSION)
    set_tests_properties(${ARGN} PROPERTIES DISABLED ON)
  endif()
endfunction()

# Called once, after all tests are defined.
function(eplb_write_left_out)
  get_property(lines GLOBAL PROPERTY EPLB_LEFT_OUT)
  list(JOIN lines "\n" text)
  file(WRITE ${PROJECT_BINARY_DIR}/tests/left_out.txt "${text}\n")
  file(WRITE ${PROJECT_BINARY_DIR}/tests/torch.txt "${EPLB_TORCH_VERSION}\n")
endfunction()
