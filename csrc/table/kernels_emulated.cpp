// The kernels' CPU build: compiles the GPU's source with the emulator.
#include "kernels.cu"
