# cmake -D BUILD=<build tree> -P: configures again, which finds new headers, and builds headers_compile_alone.
foreach(arguments "${BUILD}" "--build;${BUILD};--target;headers_compile_alone")
  execute_process(COMMAND ${CMAKE_COMMAND} ${arguments} OUTPUT_VARIABLE output ERROR_VARIABLE output
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${output}")
  endif()
endforeach()
