"""What an engine writes to files and takes from them: checkpoints, commits, averages and exports."""
