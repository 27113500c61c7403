// The page, from top to bottom.

showHead();
showTiles();
showTraining();
showTime();
showBytes();
showMemory();
showPicture();
showPrediction();
showKept();
showLog();
showSettings();
showFoot();
addContents();
document.documentElement.dataset.ready = 'true';
